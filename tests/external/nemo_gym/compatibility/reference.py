"""An environment under NeMo Gym's own programs: its resources server and its agent, without anything of Rollyard's."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.external.nemo_gym.compatibility.catalog import Environment, Row, site_packages
from tests.external.nemo_gym.compatibility.model_names import model_names, values, with_models
from tests.external.nemo_gym.compatibility.processes import HOST, ServerProcess
from tests.external.nemo_gym.compatibility.warm_python import server_environment
from tests.support.processes import free_port

START_LIMIT_S = 300.0
ROW_LIMIT_S = 240.0
AGENT = "reference_agent"


@dataclass(frozen=True)
class Played:
    """What one side made of an environment."""

    starts: bool
    rewards: list[float | None]
    """One for each row; None for a rollout that failed."""
    problem: str | None = None
    """What the server printed or answered, if it did not start or a rollout failed."""


def play(environment: Environment, model_port: int, python: Path, folder: Path) -> Played:
    """The rewards of the environment's rows under NeMo Gym's agent. `folder`: for logs."""
    ports = {environment.resources_name: free_port(), AGENT: free_port()}
    config = server_config(environment, model_port, ports, folder)

    def start(name: str, program_folder: Path, program: str) -> ServerProcess:
        variables = {"NEMO_GYM_CONFIG_DICT": yaml.safe_dump(config), "NEMO_GYM_CONFIG_PATH": name}
        command = [str(python), program]
        log = folder / f"reference_{name}.log"
        own = server_environment(folder, environment.packages)
        return ServerProcess(command, program_folder, {**own, **variables}, ports[name], log)

    server = start(environment.resources_name, environment.folder, environment.program)
    agent = None
    try:
        if problem := server.wait_until_listening(START_LIMIT_S):
            return Played(False, [], f"{problem}\n{server.printed()}")
        rows = environment.rows()
        if not rows:
            return Played(True, [])
        agent = start(AGENT, site_packages() / "responses_api_agents" / environment.agent, "app.py")
        if problem := agent.wait_until_listening(START_LIMIT_S):
            return Played(True, [], f"agent {problem}\n{agent.printed()}")
        with ThreadPoolExecutor(environment.group) as threads:
            run = partial(_run, ports[AGENT])
            answers = [
                _mean([*threads.map(run, repeats(row, task, environment.group))]) for task, row in enumerate(rows)
            ]
        failed = [answer for answer in answers if isinstance(answer, str)]
        rewards = [None if isinstance(answer, str) else answer for answer in answers]
        return Played(True, rewards, f"{failed[0]}\n{server.printed()}" if failed else None)
    finally:
        for process in (agent, server):
            if process is not None:
                process.stop()


def server_config(environment: Environment, model_port: int, ports: dict[str, int], folder: Path) -> dict[str, Any]:
    """The config as NeMo Gym's launcher resolves it, with the scripted model in place of every model."""
    tree: dict[str, Any] = with_models(environment.tree())
    model = {"responses_api_models": {"openai_model": {"entrypoint": "app.py", "host": HOST, "port": model_port}}}
    kept = {name: entry for name, entry in tree.items() if not isinstance(entry, dict) or "resources_servers" in entry}
    settings = next(iter(kept[environment.resources_name]["resources_servers"].values()))
    settings.update(host=HOST, port=ports[environment.resources_name])
    agent = {
        **{key: value for key, value in environment.agent_settings.items() if key == "max_steps"},
        "entrypoint": "app.py",
        "host": HOST,
        "port": ports[AGENT],
        "resources_server": {"type": "resources_servers", "name": environment.resources_name},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return {
        "head_server": {"host": HOST, "port": 9},
        "dry_run": False,
        **kept,
        **values(tree, model_port, folder),
        **dict.fromkeys(("policy_model", *model_names(tree)), model),
        AGENT: {"responses_api_agents": {environment.agent: agent}},
    }


def repeats(row: Row, task: int, number: int) -> list[Row]:
    """The rollouts of a row, with the keys that NeMo Gym's collector adds: a server may compare them by these."""
    return [{**row, "_ng_task_index": task, "_ng_rollout_index": repeat} for repeat in range(number)]


def _mean(answers: list[float | str]) -> float | str:
    failed = [answer for answer in answers if isinstance(answer, str)]
    return failed[0] if failed else mean_reward([answer for answer in answers if not isinstance(answer, str)])


def mean_reward(rewards: list[float]) -> float:
    """The mean, independent of the order; a single reward unchanged."""
    return math.fsum(rewards) / len(rewards)


def _run(port: int, row: Row) -> float | str:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{HOST}:{port}/run", json.dumps(row).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=ROW_LIMIT_S) as response:
            rollout = json.load(response)
        if failed := rollout.get("_ng_failure_class"):  # NeMo Gym's collector keeps it as a failure, too
            return f"{failed}: {rollout.get('_ng_error') or rollout.get('failure_reason')}"
        return float(rollout["reward"])
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode(errors='replace')[:2000]}"
    except (OSError, KeyError, TypeError, ValueError) as error:
        return repr(error)
