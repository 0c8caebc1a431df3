"""EvalPlan: what an evaluation will run, and the commands for it, checked before anything is started."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.eval_state import EvalFolder
from rollyard.launchers.evaluation.model_source import (
    KEY_VARIABLE,
    ModelSource,
    check_served,
    find_model,
    find_vllm,
    local_vllm_model,
    model_of,
)
from rollyard.records.errors import Failure, OperatorError, RunError, did_you_mean
from rollyard.records.jsonl import replace
from rollyard.records.locked_files import check_writable
from rollyard.records.manifest import Manifest, encode_manifest
from rollyard.records.rewards import is_masked_line
from rollyard.records.rollout_file import read_status
from rollyard.records.rollout_keys import Expected, Shard
from rollyard.records.script import own_command
from rollyard.records.types import Json, differences
from rollyard.records.variables import variable
from rollyard.services.config.load import load
from rollyard.services.config.overrides import ConfigOverride, as_override, parse_overrides, refuse_secrets
from rollyard.services.config.plugins import search_roots
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.config.venv import cache_folder
from rollyard.services.datasets.mixture import DatasetTasks, TaskFile
from rollyard.services.datasets.selection import agents_in, check_agents, choose_agent, notes_of, read_tasks
from rollyard.services.http.transport import endpoint_transport
from rollyard.services.rollouts.collection import CollectionPlan, check_sampling
from rollyard.services.rollouts.task_subset import subset_of_original
from rollyard.services.runtime.preflight import Preflight
from rollyard.services.runtime.ray_launcher import check_cluster
from rollyard.services.runtime.stack import new_keys

ENDPOINT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class EvalPlan:
    config: EvalConfig
    folder: EvalFolder
    source: ModelSource
    here: Path
    """The working directory, in which the servers and the collection run."""
    config_paths: tuple[str, ...]
    run_config: RunConfig | None
    agent: str | None
    input_jsonl_fpath: str | None
    data: str | dict[str, Any] | None
    tasks: DatasetTasks
    identity: Json
    """What must not change when the evaluation is resumed, in addition to the collection's own identity."""
    served: Json = field(default_factory=dict)
    """Settings of the local_vllm_model that serves the model; empty if another program does."""
    ray_command: tuple[str, ...] = ()
    """Program that starts a Ray cluster; empty if none is started."""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def expected(self) -> int:
        return Expected(self.tasks.count, self.config.num_repeats, self.folder.shard).count

    @property
    def model_title(self) -> str:
        """The model's name in messages and in the report."""
        if self.source.name:
            return self.source.name
        return "the model of the configs" if self.source.kind == "configs" else "the model of the running stack"

    def is_complete(self) -> bool:
        """Return whether the folder already holds every rollout, so that nothing needs to be started.

        The checks have compared the identity of the collection. The report verifies the rows.
        """
        status = read_status(self.folder.rollouts.output)
        expected = self.tasks.count * self.config.num_repeats
        finished = status is not None and status.state == "complete" and status.measured == expected
        return finished and _measured(self.folder.rollouts.output) == expected

    def existing(self) -> int:
        return _measured(self.folder.collected.output)


def _measured(output: Path) -> int:
    if not output.exists():
        return 0
    with output.open("rb") as file:
        return sum(line.endswith(b"\n") and not is_masked_line(line) for line in file)


async def check(config: EvalConfig, environ: Mapping[str, str], here: Path) -> EvalPlan:
    """Return the plan of an evaluation. Raises OperatorError for the first thing that would make it fail."""
    source = find_model(config, environ)
    folder = EvalFolder(here / config.output_dir, Shard.parse(config.shard))
    CollectionPlan(folder.rollouts.output, params=config.responses_create_params)  # raises on misspelt parameters
    check_sampling(config.responses_create_params)
    refuse_secrets(config.overrides)
    check_writable(folder.own, f"output_dir={folder.root}")
    served, ray_command = _check_engine(config, source, environ, folder, here)
    environments = [f"resources_servers/{name}/configs/{name}.yaml" for name in config.environments]
    paths = tuple(dict.fromkeys([*source.config_paths, *environments, *config.config_paths]))
    run_config = None
    if source.kind == "running":
        for name in ("environments", "config_paths", "overrides"):
            if getattr(config, name):
                raise OperatorError(
                    f"head={config.head} uses a running stack, which has its own configs: remove {name}"
                )
        agent = config.agent_name
        input_path, data = _choose_data(config, ())
    else:
        run_config = _load(config, source, served, paths, environ, here)
        agents = agents_in(run_config)
        agent = choose_agent(config.agent_name, [spec.name for spec in agents])
        input_path, data = _choose_data(config, agents, run_config.servers)
    given = read_tasks(here, input_path, data, agent, config.limit)
    notes = [*notes_of(given)]
    tasks = _tasks_of_folder(given, folder, agent)
    if run_config is not None:
        check_agents(tasks.agents, run_config)
    identity = identity_of(config, source, here)
    plan = EvalPlan(
        *(config, folder, source, here, paths, run_config, agent, input_path, data, tasks, identity),
        served=served,
        ray_command=ray_command,
        notes=notes,
    )
    run_command(plan)
    collect_command(plan, "127.0.0.1:1")  # raises if a value cannot be passed on
    report_command(plan)
    check_identity(folder, identity)
    _check_manifest(plan)
    if source.kind == "endpoint":
        notes += await _check_endpoint(source, environ)
    if run_config is not None:
        await _check_servers(config, run_config, environ)
    return plan


def _choose_data(
    config: EvalConfig, specs: Sequence[ServerSpec], servers: Sequence[ServerSpec] = ()
) -> tuple[str | None, str | dict[str, Any] | None]:
    """Return the input file or the mixture: the configured one, or the example rows of the environments.

    `specs`: the agents. `servers`: all servers, among them the agents' environments.
    """
    if config.input_jsonl_fpath is not None and config.data is not None:
        raise OperatorError("found both input_jsonl_fpath and data (a mixture); expected one of them")
    if config.input_jsonl_fpath is not None or config.data is not None:
        return config.input_jsonl_fpath, config.data
    examples: dict[str, str] = {}
    for spec in specs:
        for dataset in spec.settings.datasets:
            path = dataset.get("jsonl_fpath") if isinstance(dataset, Mapping) else None
            if isinstance(path, str) and dataset.get("type") == "example":
                examples.setdefault(spec.name, path)
    examples = examples or _rows_beside(specs, servers)
    if config.agent_name is not None:
        examples = {name: path for name, path in examples.items() if name == config.agent_name}
    if not examples:
        raise OperatorError("no data given; expected --input-jsonl-fpath rows.jsonl or --data ... (a mixture)")
    if len(examples) == 1:
        return next(iter(examples.values())), None
    datasets = [{"name": name, "path": path, "agent_name": name} for name, path in examples.items()]
    return None, {"datasets": datasets}


def _rows_beside(specs: Sequence[ServerSpec], servers: Sequence[ServerSpec]) -> dict[str, str]:
    """Return agent -> data/example.jsonl in the folder of its environment, if no config names example rows."""
    folders = {spec.name: spec.folder for spec in servers if spec.family == "resources_servers" and not spec.is_foreign}
    found = {}
    for spec in specs:
        server = spec.raw.get("resources_server")
        folder = folders.get(server.get("name", "")) if isinstance(server, Mapping) else None
        if folder is not None and (path := folder / "data" / "example.jsonl").is_file():
            found[spec.name] = str(path)
    return found


def _tasks_of_folder(tasks: DatasetTasks, folder: EvalFolder, agent: str | None) -> DatasetTasks:
    """Return `tasks`; if they are some tasks of the input that the folder was started with, as a subset of that input.

    `ng_collect_rollouts` accepts them likewise, so that `remaining_prompts.jsonl` continues an evaluation.
    """
    output = folder.rollouts.output
    has_rows = output.is_file() and output.stat().st_size > 0
    if not isinstance(tasks, TaskFile) or tasks.limit is not None or folder.shard is not None or not has_rows:
        return tasks
    subset, _ = subset_of_original(tasks, folder.rollouts, agent)
    return subset or tasks


def _check_engine(
    config: EvalConfig, source: ModelSource, environ: Mapping[str, str], folder: EvalFolder, here: Path
) -> tuple[Json, tuple[str, ...]]:
    """Return the settings of the model's local_vllm_model, whose own checks follow, and the program that starts Ray."""
    if source.kind != "served":
        return {}, ()
    vllm = find_vllm(config.vllm, environ)
    check_served(config, here)
    served = local_vllm_model(
        config, source, here, command=vllm, log=folder.log("vllm_server").absolute(), ray=config.ray_head_node_address
    )
    several = config.vllm.tensor_parallel_size * config.vllm.pipeline_parallel_size > 1
    if not (config.start_ray and several and config.ray_head_node_address is None):
        return served, ()
    beside = Path(vllm[0]).with_name("ray"), Path(sys.executable).with_name("ray")
    ray = next((str(path) for path in beside if path.is_file()), shutil.which("ray", path=environ.get("PATH")))
    if ray is None:
        raise OperatorError("start_ray=true needs the package ray in vLLM's environment: pip install ray")
    return served, (ray,)


def _load(
    config: EvalConfig,
    source: ModelSource,
    served: Json,
    paths: tuple[str, ...],
    environ: Mapping[str, str],
    here: Path,
) -> RunConfig:
    if not paths or paths == source.config_paths:
        raise OperatorError("no environment given; expected --environments grl_sokoban or --config-paths [...]")
    overrides = _model_overrides(source, served)
    # The key itself, because the environment variable is set only for the servers.
    given = [text for text in overrides if not text.startswith("+policy_api_key=")]
    key = ConfigOverride("+policy_api_key=...", "policy_api_key", source.api_key, adds=True)
    servers = _server_overrides(config.overrides, source)
    parsed = [*parse_overrides(given), *([key] if source.kind == "endpoint" else []), *parse_overrides(servers)]
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
    if plan.served:
        before, now = comparable_settings(before), comparable_settings(now)
    other = f"{plan.folder.root} belongs to an evaluation with different parameters"
    refuse_differences(before, {name: now[name] for name in before}, other)


async def _check_endpoint(source: ModelSource, environ: Mapping[str, str]) -> list[str]:
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
    preflight = Preflight(run_config.servers, new_keys(variable(environ, "ROLLYARD_TOKEN")), environ)
    try:
        if config.ray_head_node_address is not None:
            await check_cluster(config.ray_head_node_address)
        elif not config.start_ray:
            await preflight.check(cache_folder(environ), head=None, colocate=config.colocate)
    except RunError as error:
        raise OperatorError(str(error)) from error
    finally:
        await preflight.close()


_LOCAL = "policy_model.responses_api_models.local_vllm_model."
_EARLIER = "policy_model.responses_api_models.vllm_model."
"""How overrides of a served model began when `ng_eval` started vLLM itself."""


def run_command(plan: EvalPlan, ray: str | None = None) -> list[str]:
    """Return the `ng_run` that starts the servers, on the Ray cluster at `ray` if there is one."""
    config = plan.config
    options = ("+head_port=0", "+private=true")
    command = own_command("ng_run", as_override("config_paths", list(plan.config_paths)), *options)
    if config.colocate:
        command.append("+colocate=true")
    command.append(f"+ready_timeout_s={config.ready_timeout_s:g}")
    if ray is not None:
        command.append(as_override("ray_head_node_address", ray))
    served = {**plan.served, "ray_address": ray} if plan.served and ray is not None else plan.served
    return [*command, *_model_overrides(plan.source, served), *_server_overrides(config.overrides, plan.source)]


def _server_overrides(given: Sequence[str], source: ModelSource) -> list[str]:
    return [text.replace(_EARLIER, _LOCAL, 1) for text in given] if source.kind == "served" else list(given)


def _model_overrides(source: ModelSource, served: Json) -> list[str]:
    """Return the overrides that name the model. On the command line, they take precedence over an env.yaml."""
    if source.kind == "served":
        return [as_override("policy_model", {"responses_api_models": {"local_vllm_model": served}})]
    if source.kind != "endpoint":
        return []
    return [
        as_override("policy_base_url", source.base_url),
        as_override("policy_model_name", source.name),
        f"+policy_api_key=${{oc.env:{KEY_VARIABLE}}}",
    ]


def collect_command(plan: EvalPlan, head_url: str) -> list[str]:
    config = plan.config
    options: dict[str, Any] = {
        "output_jsonl_fpath": str(plan.folder.rollouts.output),
        "input_jsonl_fpath": plan.input_jsonl_fpath,
        "data": plan.data,
        "agent_name": plan.agent,
        "limit": config.limit,
        "num_repeats": config.num_repeats,
        "num_repeats_add_seed": config.num_repeats_add_seed or None,
        "num_samples_in_parallel": config.num_samples_in_parallel,
        "responses_create_params": dict(config.responses_create_params) or None,
        "rollout_timeout_s": config.rollout_timeout_s,
        "max_failure_rate": config.max_failure_rate,
        "shard": config.shard,
        "head": head_url,
    }
    return _command("ng_collect_rollouts", options)


def _command(name: str, options: Mapping[str, Any]) -> list[str]:
    return own_command(name, *(as_override(key, value) for key, value in options.items() if value is not None))


def report_command(plan: EvalPlan) -> list[str]:
    options: dict[str, Any] = {
        "jsonl_fpath": [str(plan.folder.rollouts.output)],
        "output_dir": str(plan.folder.root),
        "report_name": plan.folder.report.stem,
        "names": [plan.model_title],
        "pass_threshold": plan.config.pass_threshold,
    }
    return _command("ng_reward_profile", options)


ENGINE = ("dtype", "max_model_len", "tool_call_parser", "trust_remote_code", "args")
"""Settings of vLLM that change what the model answers."""


def identity_of(config: EvalConfig, source: ModelSource, here: Path) -> Json:
    """Return what identifies the model and how it is served. It contains no address and no secret."""
    identity: Json = {"model": source.name or None, "kind": source.kind, "api": source.api}
    if source.kind == "served":
        settings = config.vllm.model_dump(mode="json")
        identity["vllm"] = {name: settings[name] for name in ENGINE}
        folder = _folder(config, here)
        identity["weights"] = fingerprint(folder) if folder.is_dir() else None
    return identity


def check_weights(config: EvalConfig, identity: Json, here: Path) -> None:
    """Raise OperatorError if the folder of weights that vLLM has loaded is not the one of `identity` any more."""
    folder = _folder(config, here)
    try:
        changed = identity.get("weights") is not None and fingerprint(folder) != identity["weights"]
    except FileNotFoundError:  # deleted after it was loaded
        return
    if changed:
        raise OperatorError(
            f"{folder} was changed after the evaluation started; its rollouts would be of different weights. Evaluate "
            "the new weights in another output_dir"
        )


def check_identity(folder: EvalFolder, identity: Json) -> None:
    """Raise OperatorError if the folder contains rollouts of another model. Changes nothing."""
    before = read_identity(folder.identity)
    if before is None or not folder.rollouts.output.exists() or folder.rollouts.output.stat().st_size == 0:
        return  # nothing was collected with another model
    other = f"{folder.root} belongs to an evaluation of a different model, or with other settings"
    refuse_differences(before, identity, other)


def read_identity(path: Path) -> Json | None:
    """Return what a folder's evaluation must not change; None for a new folder. Raises OperatorError if unreadable."""
    try:
        found: Json = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OperatorError(f"{path} cannot be read: {error}. Choose another output_dir") from error
    return found


def refuse_differences(before: Json, now: Json, other: str) -> None:
    """Raise OperatorError with `other` and what is different, if anything is."""

    def shown(value: object) -> str:
        return "not set" if value is None else repr(value)

    if found := list(differences(before, now)):
        listed = "\n".join(f"  {name}: {shown(old)} in the folder, {shown(new)} now" for name, old, new in found)
        raise OperatorError(
            f"{other}:\n{listed}\nRepeat the original command to continue it, or choose another output_dir"
        )


def write_identity(path: Path, identity: Json) -> None:
    replace(path, orjson.dumps(identity, option=orjson.OPT_INDENT_2) + b"\n")


_SERVED = (
    *("implementation", "entrypoint", "model", "dtype", "max_model_len", "tool_call_parser", "extra_flags"),
    *("logprobs_mode", "return_token_id_information", "uses_reasoning_parser"),
)
"""Settings of a served model's server in the manifest that follow from those of vLLM, or are always the same."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_TRAINER_FILES = ("optimizer", "scheduler", "scaler", "rng_state", "training_args", "trainer_state")
"""Beginnings of the names of files that trainers save next to the weights, often after them."""
_SAMPLE_BYTES, _SAMPLE_EVERY = 1 << 12, 1 << 20
"""Of a file of weights, 4 KiB of each MiB are read: 0.4% of a model, and part of each tensor of a MiB or more."""


def comparable_settings(identity: Json) -> Json:
    """Return a manifest's identity without what `eval_identity.json` holds about a served model."""
    settings = dict(identity.get("settings") or {})
    if isinstance(policy := settings.get("policy_model"), dict):
        settings["policy_model"] = {key: value for key, value in policy.items() if key not in _SERVED}
    return {**identity, "settings": settings}


def update_manifest(folder: EvalFolder, settings: Json) -> None:
    """Write the settings of a served model's server into the manifest, after `check_identity` has compared the model.

    `ng_eval` once started vLLM itself, so its manifests have those of a vllm_model. `settings`: of all servers.
    """
    path = folder.rollouts.manifest
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return  # absent, or the collector explains what is wrong with it
    known = manifest.identity.get("settings") or {}
    if "policy_model" in known and known["policy_model"] != settings["policy_model"]:
        known = {**known, "policy_model": settings["policy_model"]}
        changed = manifest.model_copy(update={"identity": {**manifest.identity, "settings": known}})
        replace(path, encode_manifest(changed))


def fingerprint(folder: Path) -> str:
    """Return a hash of a checkpoint: its small files, and samples of each file of weights, also of its two ends."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name.startswith("."):
            continue
        size = path.stat().st_size
        if path.name.startswith(_TRAINER_FILES) or path.suffix not in (*_WEIGHTS, ".json", ".jinja", ".model", ".txt"):
            continue
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            if path.suffix not in _WEIGHTS or size <= 2 * _SAMPLE_EVERY:
                digest.update(hashlib.file_digest(file, "sha256").digest())
                continue
            for offset in (*range(0, size, _SAMPLE_EVERY), size - _SAMPLE_BYTES):
                digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, offset))
    return digest.hexdigest()


def _folder(config: EvalConfig, here: Path) -> Path:
    return here / Path(model_of(config)).expanduser()
