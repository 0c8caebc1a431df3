"""Checks an evaluation before anything is started: config, model, data, servers, disk."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import orjson

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.launchers.evaluation.pipeline import commands
from rollyard.launchers.evaluation.pipeline.identity import check_identity, identity_of
from rollyard.launchers.evaluation.pipeline.model_source import ModelSource, find_model
from rollyard.launchers.evaluation.pipeline.plan import (
    EvalPlan,
    choose_data,
    config_paths_of,
    tasks_of_folder,
)
from rollyard.launchers.evaluation.pipeline.vllm_command import check_vllm, find_vllm
from rollyard.records.errors import Failure, OperatorError, RunError, did_you_mean
from rollyard.records.io.json_differences import differences
from rollyard.records.io.writable import check_writable
from rollyard.records.rollouts.manifest_records import Manifest
from rollyard.services.config.load import load
from rollyard.services.config.overrides import Override, parse_overrides
from rollyard.services.config.overrides.command_line import refuse_secrets
from rollyard.services.config.run_config import RunConfig
from rollyard.services.config.server_folders import search_roots
from rollyard.services.config.venv import cache_folder
from rollyard.services.datasets.selection import agents_in, check_agents, choose_agent, notes_of, read_tasks
from rollyard.services.http.transport import endpoint_transport
from rollyard.services.rollouts.collection import CollectionPlan
from rollyard.services.rollouts.sampling import check_sampling
from rollyard.services.runtime.hosting import bind
from rollyard.services.runtime.ports import owner_of_port
from rollyard.services.runtime.preflight import Preflight
from rollyard.services.runtime.ray_launcher import check_cluster
from rollyard.services.runtime.stack import new_keys

_UNKNOWN_URL = "http://127.0.0.1:1/v1"
"""Placeholder for the address of a model that is not served yet."""
ENDPOINT_TIMEOUT_S = 30.0


async def check(config: EvalConfig, environ: Mapping[str, str], here: Path) -> EvalPlan:
    """Return the plan of an evaluation. Raises OperatorError for the first thing that would make it fail."""
    source = find_model(config, environ)
    folder = EvalFolder(here / config.output_dir, config.worker)
    CollectionPlan(folder.rollouts.output, params=config.responses_create_params)  # raises on misspelt parameters
    check_sampling(config.responses_create_params)
    refuse_secrets(config.overrides)
    check_writable(folder.own, f"output_dir={folder.root}")
    vllm_command, ray_command, notes = _check_engine(config, source, environ, here)
    paths = config_paths_of(config, source)
    run_config = None
    if source.kind == "running":
        _refuse_unused(config)
        agent = config.agent_name
        input_path, data = choose_data(config, ())
    else:
        run_config = _load(config, source, paths, environ, here)
        agents = agents_in(run_config)
        agent = choose_agent(config.agent_name, [spec.name for spec in agents])
        input_path, data = choose_data(config, agents, run_config.servers)
    given = read_tasks(here, input_path, data, agent, config.limit)
    notes += notes_of(given)
    tasks = tasks_of_folder(given, folder, agent)
    if run_config is not None:
        check_agents(tasks.agents, run_config)
    identity = identity_of(config, source, here)
    plan = EvalPlan(
        *(config, folder, source, here, paths, run_config, agent, input_path, data, tasks, identity),
        vllm_command=vllm_command,
        ray_command=ray_command,
        notes=notes,
    )
    commands.run_command(plan, source.base_url)
    commands.collect_command(plan, "127.0.0.1:1")  # raises if a value cannot be passed on
    commands.report_command(plan)
    check_identity(folder, identity)
    _check_manifest(plan)
    if source.kind == "endpoint":
        notes += await check_endpoint(source, environ)
    if run_config is not None:
        await _check_servers(config, run_config, environ)
    return plan


def _check_engine(
    config: EvalConfig, source: ModelSource, environ: Mapping[str, str], here: Path
) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    if source.kind != "served":
        return (), (), []
    vllm = find_vllm(config.vllm, environ)
    notes = check_vllm(config, here, environ)
    if config.vllm.port is not None:
        try:
            bind(config.vllm.host, config.vllm.port).close()
        except OSError as error:
            owner = owner_of_port(config.vllm.port)
            raise OperatorError(
                f"vllm.port={config.vllm.port} cannot be used{owner}: {error.strerror}. If a model is already served "
                "there, use it with --policy-base-url ...; otherwise choose another port, or none for a free one"
            ) from error
    several = config.vllm.tensor_parallel_size * config.vllm.pipeline_parallel_size > 1
    if not (config.start_ray and several and config.ray_head_node_address is None):
        return vllm, (), notes
    beside = Path(vllm[0]).with_name("ray"), Path(sys.executable).with_name("ray")
    ray = next((str(path) for path in beside if path.is_file()), shutil.which("ray", path=environ.get("PATH")))
    if ray is None:
        raise OperatorError("start_ray=true needs the package ray in vLLM's environment: pip install ray")
    return vllm, (ray,), notes


def _refuse_unused(config: EvalConfig) -> None:
    for name in ("environments", "config_paths", "overrides"):
        if getattr(config, name):
            raise OperatorError(f"head={config.head} uses a running stack, which has its own configs: remove {name}")


def _load(
    config: EvalConfig, source: ModelSource, paths: tuple[str, ...], environ: Mapping[str, str], here: Path
) -> RunConfig:
    if not paths or paths == source.config_paths:
        raise OperatorError("no environment given; expected --environments grl_sokoban or --config-paths [...]")
    overrides = commands.model_overrides(source, source.base_url or _UNKNOWN_URL)
    # The key itself, because the environment variable is set only for the servers.
    given = [text for text in overrides if not text.startswith("+policy_api_key=")]
    key = Override("+policy_api_key=...", "policy_api_key", source.api_key, adds=True)
    parsed = [*parse_overrides(given), *([key] if overrides else []), *parse_overrides(config.overrides)]
    return load(list(paths), parsed, search_roots(here), environ)


def _check_manifest(plan: EvalPlan) -> None:
    """Raise OperatorError if the folder's rollouts are of other rows or parameters. The collector also checks this."""
    try:
        manifest = Manifest.model_validate_json(plan.folder.rollouts.manifest.read_bytes())
    except (OSError, ValueError):
        return  # absent, or the collector explains what is wrong with it
    if not plan.existing():
        return  # nothing was measured, so nothing can be mixed
    config = plan.config
    now = {
        **plan.tasks.identity,
        "agent_name": plan.agent,
        "num_repeats": config.num_repeats,
        "num_repeats_add_seed": config.num_repeats_add_seed,
        "responses_create_params": dict(config.responses_create_params),
        "settings": plan.run_config.identity() if plan.run_config is not None else {},
    }
    before = {name: value for name, value in manifest.identity.items() if name in now}
    # The manifest has the settings of the servers that the rows use.
    now["settings"] = {name: value for name, value in now["settings"].items() if name in before.get("settings", {})}
    if plan.run_config is None:
        before.pop("settings", None)
    changed = list(differences(before, {name: now[name] for name in before}))
    if changed:
        listed = "\n".join(f"  {name}: {old!r} in the folder, {new!r} now" for name, old, new in changed)
        raise OperatorError(
            f"{plan.folder.root} belongs to an evaluation with different parameters:\n{listed}\n"
            "Repeat the original command to continue it, or choose another output_dir"
        )


async def check_endpoint(source: ModelSource, environ: Mapping[str, str]) -> list[str]:
    """Ask the endpoint for its models. Returns notes; raises OperatorError if it does not serve the model."""
    transport = endpoint_transport(environ)
    headers = {"authorization": f"Bearer {source.api_key}"}
    try:
        response = await transport.send("GET", f"{source.base_url}/models", b"", headers, ENDPOINT_TIMEOUT_S)
    except Failure as failure:
        raise OperatorError(
            f"{source.base_url} does not answer: {failure.problem.detail}. Check policy_base_url, and that the server "
            "is running"
        ) from failure
    finally:
        await transport.close()
    if response.status in (401, 403):
        variable = source.key_variable or "policy_api_key"
        raise OperatorError(f"{source.base_url} rejects the API key (status {response.status}): check {variable}")
    if response.status != 200:
        return [f"{source.base_url}/models answers with status {response.status}, so the model's name is not checked"]
    try:
        names = [str(model["id"]) for model in orjson.loads(response.body)["data"]]
    except (ValueError, KeyError, TypeError):
        return [f"{source.base_url}/models has an unknown format, so the model's name is not checked"]
    if source.name not in names and f"models/{source.name}" not in names:
        listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise OperatorError(
            f"{source.base_url} does not serve {source.name!r}{did_you_mean(source.name, names)} (it serves: {listed})"
        )
    return []


async def _check_servers(config: EvalConfig, run_config: RunConfig, environ: Mapping[str, str]) -> None:
    preflight = Preflight(run_config.servers, new_keys(environ.get("ROLLYARD_TOKEN")), environ)
    try:
        if config.ray_head_node_address is not None:
            await check_cluster(config.ray_head_node_address)
        elif not config.start_ray:
            await preflight.check(cache_folder(environ), head=None, colocate=config.colocate)
    except RunError as error:
        raise OperatorError(str(error)) from error
    finally:
        await preflight.close()
