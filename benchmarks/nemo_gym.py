"""CPU time per model call of Rollyard and of NeMo Gym 0.7, in turn, at the same endpoint: `make bench-nemo-gym`.

Both play the same rows with their `simple_agent`, their `vllm_model` and an environment whose only tool does nothing: 6
model calls and 5 tool calls per episode, 64 episodes in flight. Counted are the head, the servers, and the collector
after its start, as in turns.py; NeMo Gym's idle Ray cluster and the endpoint are not. Rollyard plays ten times as many
rows, because the start of its collector would otherwise be most of what is measured. Rollouts/s are those of the whole
command, without the time that it needs for a single one.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
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
from benchmarks.comparison import Figure, Measure, Plan, Sample, compare, interval, warmed_up
from benchmarks.processes import cpu_s, memory_mb, with_variable
from benchmarks.tables import table, verdict, write_section

TIMES = 25
"""The target: how many times as much CPU NeMo Gym needs."""
TITLES = ("NeMo Gym", "Rollyard")
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

    pids: Mapping[str, int]
    """Of the head and each server."""
    cluster: Sequence[int]
    """Ray's processes."""
    collect: Callable[[Path], float]
    """Plays the rows in a file; returns the CPU seconds of the collector."""
    rows: int
    """How many to play per measurement."""

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds used so far."""
        return {name: cpu_s(pid) for name, pid in self.pids.items()}


class Beside(NamedTuple):
    """What is measured beside the CPU time."""

    rollouts_per_s: float
    servers_mb: float
    """Memory of the head and the servers: PSS."""
    ray_mb: float


@contextmanager
def rollyard(folder: Path, url: str) -> Iterator[Stack]:
    config = workloads.game(url, "trivial", agent="simple_agent")
    with stack(folder, config, f"+server_roots=[{workloads.plug_ins(folder / 'plugins')}]") as run:

        def play(rows: Path) -> float:
            return collect(run, workloads.AGENT, rows, parallel=PARALLEL, repeats=1).finish().cpu_s

        yield Stack(run.pids, (), play, 10 * ROLLOUTS)


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
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    home = folder / "home"
    home.mkdir()
    # Ray writes a token into the home folder, and its logs and sockets into another one.
    environ = {**environment(), "PATH": path, "HOME": str(home), "RAY_TMPDIR": str(home), "WANDB_MODE": "offline"}
    log = folder / "gym.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=output)

    def play(rows: Path) -> float:
        files = [f"+input_jsonl_fpath={rows}", f"+output_jsonl_fpath={rows.with_name(f'of_{rows.name}')}"]
        options = [f"+agent_name={workloads.AGENT}", *files, f"+num_samples_in_parallel={PARALLEL}", *_head(port)]
        return cpu_of([str(commands / "ng_collect_rollouts"), *options], folder, environ)

    try:
        deadline = time.monotonic() + START_S
        while b"servers ready!" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"gym env start did not become ready:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_instances", timeout=TIMEOUT_S) as response:
            servers: list[dict[str, Any]] = orjson.loads(response.read())
        pids = {"head": process.pid, **{server["process_name"]: server["pid"] for server in servers}}
        yield Stack(pids, sorted({*with_variable("HOME", str(home))} - {*pids.values()}), play, ROLLOUTS)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(TIMEOUT_S)
        for pid in with_variable("HOME", str(home)):  # what it left behind
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _head(port: int) -> list[str]:
    return ["+head_server.host=127.0.0.1", f"+head_server.port={port}"]


@contextmanager
def side(beside: dict[Path, list[Beside]], commands: Path, folder: Path) -> Iterator[Measure]:
    """Start one of the two; yield what measures its CPU milliseconds per model call."""
    with (
        model_endpoint(turns=TURNS) as script,
        rollyard(folder, script.url) if commands == COMMANDS else gym(commands, folder, script.url) as servers,
    ):

        def collected(name: str, rows: int) -> tuple[float, float]:
            """CPU and wall seconds of the collector."""
            path = write_rows(folder / f"{name}.jsonl", [ROW] * rows)
            started = time.monotonic()
            return servers.collect(path), time.monotonic() - started

        def once(number: int) -> Sample:
            calls, before = script.stats()[0], servers.cpu()
            cpu, wall = collected(f"rows{number}", servers.rows)
            calls = script.stats()[0] - calls
            used = {name: 1000 * (now - before[name]) / calls for name, now in servers.cpu().items()}
            if number >= 0:
                memory = [sum(memory_mb(pid)[1] for pid in pids) for pids in (servers.pids.values(), servers.cluster)]
                beside.setdefault(commands, []).append(Beside(servers.rows / (wall - start_s), *memory))
            shown = {name: used.pop(name) for name in ("model", "environment", workloads.AGENT)}
            return {**shown, "collector": 1000 * (cpu - start_cpu_s) / calls, "others": sum(used.values())}

        starts = [collected(f"one{number}", 1) for number in range(2)]
        start_cpu_s, start_s = (min(values) for values in zip(*starts, strict=True))
        yield warmed_up(once)


def medians(samples: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(values) for values in zip(*samples, strict=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if NeMo Gym does not need 25 times as much, 2 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", type=Path, help="folder of the commands of an environment with nemo-gym 0.7")
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each")
    parser.add_argument("--write", type=Path, help="page whose table to replace")
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    plan = Plan(pairs=options.pairs, most_pairs=options.pairs, limit=1 / TIMES)
    beside: dict[Path, list[Beside]] = {}
    figure = Figure(f"One empty tool, {PARALLEL} episodes in flight", "CPU ms/call", partial(side, beside))
    commands = options.commands.absolute()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            found = compare(figure, commands, Path(temporary), plan, TITLES)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 2
    found.show(plan.limit)
    low, high = (1 / end for end in reversed(interval(found.ratios)))
    times = f"{TITLES[0]} needs {1 / statistics.median(found.ratios):.1f} times as much CPU ({low:.1f} to {high:.1f})"
    head = ["", "rollouts/s", "MB of head and servers", "MB of Ray"]
    rows = [[title, *medians(beside[side])] for title, side in zip(TITLES, (commands, COMMANDS), strict=True)]
    table("Beside it", head, rows, f"{times}, target >={TIMES}: {verdict(low >= TIMES)}")
    if options.write:
        parts = [medians([tuple(sample.values()) for sample in samples]) for samples in (found.before, found.now)]
        wide = [[row[0], sum(ms), *ms, *row[1:]] for row, ms in zip(rows, parts, strict=True)]
        columns = ["", figure.unit, *found.now[0], *head[1:]]
        write_section(options.write, "nemo_gym", load, [(f"{figure.name}; {times}", columns, wide)])
    return int(found.is_worse(plan.limit))


if __name__ == "__main__":
    sys.exit(main())
