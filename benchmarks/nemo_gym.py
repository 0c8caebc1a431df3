"""CPU time per model call of Rollyard and of NeMo Gym, in turn, in front of the same endpoint: `make bench-nemo-gym`.

Both play the same rows with their `simple_agent`, their `vllm_model` and an environment whose only tool does nothing: 6
model calls and 5 tool calls per episode, 64 episodes in flight. Counted are the head, the servers, and the collector
after its start, as in turns.py; NeMo Gym's idle Ray cluster and the endpoint are not. Rollyard plays ten times as many
rows, because the start of its collector would otherwise be most of what is measured.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks import workloads
from benchmarks.commands import (
    COMMANDS,
    TIMEOUT_S,
    BenchmarkError,
    collect,
    cpu_of,
    environment,
    model_endpoint,
    stack,
    write_rows,
)
from benchmarks.comparison import Figure, Measure, Plan, Sample, compare
from benchmarks.processes import children, cpu_s

TIMES = 25
"""The target: how many times as much CPU NeMo Gym needs."""
TURNS = 6
PARALLEL = 64
ROLLOUTS = 160
START_S = 600.0
SERVERS = (
    "resources_servers/trivial",
    "responses_api_agents/simple_agent",
    "responses_api_models/vllm_model",
    "environment_servers/legacy_agent",
)
"""Folders of NeMo Gym's servers. It adds the last one to each agent."""
ENVIRONMENT = """\
from fastapi import FastAPI
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig, BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer
)
from pydantic import BaseModel


class StepRequest(BaseModel):
    actions: list[str]


class StepResponse(BaseModel):
    output: str


class Trivial(SimpleResourcesServer):
    ray_enabled = False
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/step")(self.step)
        return app

    async def step(self, body: StepRequest) -> StepResponse:
        return StepResponse(output="ok")

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


if __name__ == "__main__":
    Trivial.run_webserver()
"""
STEP = {
    "type": "function",
    "name": "step",
    "description": "Do nothing.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"actions": {"type": "array", "items": {"type": "string"}}},
        "required": ["actions"],
        "additionalProperties": False,
    },
}
ROW = {"responses_create_params": {"input": [{"role": "user", "content": "Play."}], "tools": [STEP]}}


class Stack(NamedTuple):
    """Running servers of either side."""

    cpu: Callable[[], Mapping[str, float]]
    """Returns the CPU seconds used so far by the head and each server."""
    collect: Callable[[Path], float]
    """Plays the rows in a file; returns the CPU seconds of the collector."""
    rows: int
    """How many to play per measurement."""


@contextmanager
def rollyard(folder: Path, url: str) -> Iterator[Stack]:
    config = workloads.game(url, "trivial", agent="simple_agent")
    with stack(folder, config, f"+server_roots=[{workloads.plug_ins(folder / 'plugins')}]") as run:

        def play(rows: Path) -> float:
            return collect(run, workloads.AGENT, rows, parallel=PARALLEL, repeats=1).finish().cpu_s

        yield Stack(run.cpu, play, 10 * ROLLOUTS)


@contextmanager
def gym(commands: Path, folder: Path, url: str) -> Iterator[Stack]:
    """Run `gym env start`. All its servers use the same virtual environment."""
    for name in SERVERS:
        (folder / "venvs" / name).mkdir(parents=True)
        (folder / "venvs" / name / ".venv").symlink_to(commands.parent)
    server = folder / "resources_servers" / "trivial"
    server.mkdir(parents=True)
    (server / "app.py").write_text(ENVIRONMENT)
    (server / "requirements.txt").write_text("nemo-gym\n")
    names = {
        "resources_server": {"type": "resources_servers", "name": "environment"},
        "model_server": {"type": "responses_api_models", "name": "model"},
    }
    model = {"base_url": f"{url}/v1", "api_key": "none", "model": "script"}
    flags = {"return_token_id_information": False, "uses_reasoning_parser": False}
    config = {
        "model": {"responses_api_models": {"vllm_model": {"entrypoint": "app.py", **model, **flags}}},
        "environment": {"resources_servers": {"trivial": {"entrypoint": "app.py", "domain": "games"}}},
        workloads.AGENT: {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **names}}},
    }
    (folder / "run.yaml").write_bytes(orjson.dumps(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(commands / "gym"), "env", "start", "+config_paths=[run.yaml]", *_head(port)]
    command += [f"+uv_venv_dir={folder / 'venvs'}", "+skip_venv_if_present=true"]
    environ = {**environment(), "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "WANDB_MODE": "offline"}
    log = folder / "gym.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=output)

    def cpu() -> Mapping[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_instances", timeout=TIMEOUT_S) as response:
            servers: list[dict[str, Any]] = orjson.loads(response.read())
        return {"head": cpu_s(process.pid), **{each["process_name"]: cpu_s(each["pid"]) for each in servers}}

    def play(rows: Path) -> float:
        files = [f"+input_jsonl_fpath={rows}", f"+output_jsonl_fpath={rows.with_name(f'of_{rows.name}')}"]
        options = [f"+agent_name={workloads.AGENT}", *files, f"+num_samples_in_parallel={PARALLEL}", *_head(port)]
        return cpu_of([str(commands / "ng_collect_rollouts"), *options], folder)

    try:
        deadline = time.monotonic() + START_S
        while b"servers ready!" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"gym env start did not become ready:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield Stack(cpu, play, ROLLOUTS)
    finally:
        family = children(process.pid)
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TIMEOUT_S)
        for pid in (process.pid, *family):  # what it left behind
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _head(port: int) -> list[str]:
    return ["+head_server.host=127.0.0.1", f"+head_server.port={port}"]


@contextmanager
def side(commands: Path, folder: Path) -> Iterator[Measure]:
    """Start one of the two; yield what measures its CPU milliseconds per model call."""
    with (
        model_endpoint(turns=TURNS) as script,
        rollyard(folder, script.url) if commands == COMMANDS else gym(commands, folder, script.url) as servers,
    ):

        def once(number: int) -> Sample:
            rows = write_rows(folder / f"rows{number}.jsonl", [ROW] * servers.rows)
            calls, before = script.stats()[0], servers.cpu()
            collector = servers.collect(rows) - start_s
            calls = script.stats()[0] - calls
            used = {name: 1000 * (cpu - before[name]) / calls for name, cpu in servers.cpu().items()}
            shown = {name: used.pop(name) for name in ("model", "environment", workloads.AGENT)}
            return {**shown, "collector": 1000 * collector / calls, "others": sum(used.values())}

        start_s = min(servers.collect(write_rows(folder / f"one{number}.jsonl", [ROW])) for number in range(2))
        once(-1)
        yield once


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if NeMo Gym does not need 25 times as much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", type=Path, help="folder of the commands of an environment with nemo-gym 0.7")
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each")
    options = parser.parse_args(arguments)
    plan = Plan(options.pairs, options.pairs, limit=1 / TIMES)
    figure = Figure(f"One empty tool, {PARALLEL} episodes in flight", "CPU ms/call", side)
    with tempfile.TemporaryDirectory() as temporary:
        commands = options.commands.absolute()
        found = compare(figure, commands, Path(temporary), plan, time.monotonic(), ("NeMo Gym", "Rollyard"))
    found.show(plan.limit)
    return int(found.is_worse(plan.limit))


if __name__ == "__main__":
    sys.exit(main())
