"""The same environment, started from NeMo Gym's folder by `ng_run`, and played by `ng_collect_rollouts`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.external.nemo_gym.compatibility.catalog import PLAYABLE_AGENTS, Environment, site_packages
from tests.external.nemo_gym.compatibility.model_names import model_names, values, with_models
from tests.external.nemo_gym.compatibility.processes import HOST
from tests.external.nemo_gym.compatibility.reference import ROW_LIMIT_S, START_LIMIT_S, Played, mean_reward
from tests.external.nemo_gym.compatibility.warm_python import server_environment
from tests.support.waiting import deadline_s

BIN = Path(sys.executable).parent
AGENT = "compatibility_agent"


def play(environment: Environment, model_port: int, python: Path, folder: Path) -> Played:
    """The rewards of the environment's rows under Rollyard's agent. `folder`: for the run and its files."""
    config, agent = run_configs(environment, model_port, folder)
    log = folder / "ng_run.log"
    paths = [f"+config_paths=[{','.join(map(str, config))}]", f"+server_roots=[{site_packages()}]", f"+python={python}"]
    command = [str(BIN / "ng_run"), *paths, "+head_port=0", f"+ready_timeout_s={START_LIMIT_S}"]
    env = server_environment(folder, environment.packages)
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        end = time.monotonic() + START_LIMIT_S + 60
        while "servers ready!" not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > end:
                return Played(False, [], log.read_text(errors="replace")[-6000:])
            time.sleep(0.2)
        return _collected(environment, agent, folder)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=deadline_s())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_configs(environment: Environment, model_port: int, folder: Path) -> tuple[list[Path], str]:
    """The config files of the run, and the name of the agent that plays.

    The first is NeMo Gym's own file, as it is, unless it names an agent that is replaced, a model that is not scripted,
    an address, or a second environment, or completes another file: then it is a copy without these.
    """
    written = yaml.safe_load(environment.config.read_text())
    tree: dict[str, Any] = with_models(environment.tree())
    agents = {name: entry for name, entry in tree.items() if _family(entry) == "responses_api_agents"}
    dropped = {
        name
        for name, entry in tree.items()
        if (_family(entry) == "responses_api_models")
        or (_family(entry) == "resources_servers" and name != environment.resources_name)
        or (name in agents and not _plays(entry, environment))
    }
    if dropped & agents.keys():  # with what refers to them, and the files that complete them
        dropped |= {name for name, entry in tree.items() if _family(entry) == "environment_servers"} | {"config_paths"}
    own = environment.config
    if dropped or tree != written:
        own = folder / "config.yaml"
        own.write_text(yaml.safe_dump({name: entry for name, entry in tree.items() if name not in dropped}))
    model = {"responses_api_models": {"openai_model": {"url": f"http://{HOST}:{model_port}"}}}
    added: dict[str, Any] = {
        **values(tree, model_port, folder),
        **dict.fromkeys(("policy_model", *model_names(tree)), model),
    }
    agent = next((name for name in agents if name not in dropped), None)
    if agent is None:
        agent = AGENT
        settings = {
            "entrypoint": "app.py",
            "tool_timeout_s": ROW_LIMIT_S,
            "resources_server": {"type": "resources_servers", "name": environment.resources_name},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
        }
        added[agent] = {"responses_api_agents": {environment.agent: settings}}
    overlay = folder / "models.yaml"
    overlay.write_text(yaml.safe_dump(added))
    return [own, overlay], agent


def _family(entry: Any) -> str | None:
    return next(iter(entry), None) if isinstance(entry, dict) else None


def _settings(entry: dict[str, Any]) -> dict[str, Any]:
    """Implementation -> settings of the one server in an entry."""
    settings: dict[str, Any] = next(iter(entry.values()))
    return settings


def _plays(entry: dict[str, Any], environment: Environment) -> bool:
    implementation, settings = next(iter(_settings(entry).items()))
    server = (settings.get("resources_server") or {}).get("name")
    return implementation in PLAYABLE_AGENTS and bool(server == environment.resources_name)


def _collected(environment: Environment, agent: str, folder: Path) -> Played:
    rows = environment.rows()
    if not rows:
        return Played(True, [])
    source, output = folder / "rows.jsonl", folder / "rollouts.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        *(str(BIN / "ng_collect_rollouts"), f"+agent_name={agent}", f"+num_repeats={environment.group}"),
        *(f"+input_jsonl_fpath={source}", f"+output_jsonl_fpath={output}"),
        *(f"+num_samples_in_parallel={environment.group}", f"+rollout_timeout_s={ROW_LIMIT_S}"),
        *("+max_attempts=1", "+max_failure_rate=1.0"),
    ]
    limit_s = ROW_LIMIT_S * len(rows) + 120
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False)
    groups: list[list[float]] = [[] for _ in rows]
    for rollout in _lines(output):
        groups[rollout["_ng_task_index"]].append(rollout["reward"])
    rewards = [mean_reward(group) if len(group) == environment.group else None for group in groups]
    failures = _lines(output.with_name("rollouts_failures.jsonl"))
    if None not in rewards:
        return Played(True, rewards)
    first = failures[0] if failures else None
    said = f"{first['failure_kind']}: {first['detail']}" if first else finished.stdout[-1500:] + finished.stderr[-1500:]
    return Played(True, rewards, said)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line] if path.is_file() else []
