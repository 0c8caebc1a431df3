"""Helpers of the crash tests: a stack of forked processes, commands as processes, waits with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import orjson
import uvloop

from rollyard.cli import collect_rollouts
from rollyard.cli import status as show_status
from rollyard.records.run_types import Launch
from rollyard.records.types import Json
from rollyard.services.backoff import Backoff
from rollyard.services.config.run_config import RunConfig
from rollyard.services.runtime.run_dir import RunFolder
from rollyard.services.runtime.serve import serve_until_signalled
from rollyard.services.runtime.stack import Stack, new_keys
from tests.faults.forked import FORKS, Forked, become, forked_command
from tests.support.stacks import AGENT, keys_of, read_rows, reproducible_part
from tests.support.waiting import deadline_s

ENVIRONMENT = "grl_sokoban_resources_server"
POLICY = "policy_model"
COLLECT = (sys.executable, "-c", "from rollyard.cli.collect_rollouts import main; main()")
RUN = (sys.executable, "-c", "from rollyard.cli.run import main; main()")

FORKS.set_forkserver_preload(
    [
        "pytest",
        "tests.faults.crash.harness",
        "rollyard.agents.game_agent.app",
        "rollyard.resources_servers.grl_sokoban.app",
        "rollyard.responses_api_models.builtin_model.app",
    ]
)


class ForkLauncher:
    """A `rollyard.services.runtime.launcher.Launcher` that starts servers in tens of milliseconds."""

    def __init__(self) -> None:
        self.launched: list[Forked] = []

    async def launch(self, launch: Launch, log: Path) -> Forked:
        self.launched.append(Forked(_serve, launch.model_dump_json(), str(log)))
        return self.launched[-1]


def _serve(text: str, log: str) -> None:
    become(log)
    uvloop.run(serve_until_signalled(Launch.model_validate_json(text), {}))


def collect_arguments(stack: Stack, rows: Path, output: Path, **options: object) -> list[str]:
    """Arguments of `ng_collect_rollouts` for seeded rollouts of the Sokoban agent."""
    given = {
        "head": stack.head_url.removeprefix("http://"),
        "agent_name": AGENT,
        "input_jsonl_fpath": rows,
        "output_jsonl_fpath": output,
        "num_repeats_add_seed": "true",
        **options,
    }
    return [f"+{name}={value}" for name, value in given.items()]


def forked_collect(arguments: Sequence[str], log: Path, here: Path | None = None) -> Forked:
    return forked_command(collect_rollouts.main, arguments, log, here or log.parent)


def forked_status(arguments: Sequence[str], log: Path, here: Path) -> Forked:
    return forked_command(show_status.main, arguments, log, here)


@contextlib.asynccontextmanager
async def forked(
    config: RunConfig, folder: Path, launcher: ForkLauncher | None = None, restart_pause_s: float = 0.02
) -> AsyncIterator[Stack]:
    """A stack with forked servers; dead ones are restarted almost immediately."""
    keys = new_keys()
    stack = Stack(
        config,
        keys,
        RunFolder.create(folder, keys.run_id),
        print_line=lambda text: None,
        launcher=launcher or ForkLauncher(),
        head_port=0,
        ready_timeout_s=deadline_s(),
        restarts=Backoff(first_pause_s=restart_pause_s, longest_pause_s=restart_pause_s),
    )
    try:
        await stack.start()
        yield stack
    finally:
        await stack.stop()


def ready_pid(stack: Stack, server: str) -> int | None:
    """Process id of the ready instance of `server`."""
    return next(
        (instance.pid for instance in stack.registry.instances() if instance.server_name == server and instance.ready),
        None,
    )


async def gauge(stack: Stack, server: str, name: str) -> float:
    url = stack.registry.directory().servers[server][0]
    answer = await stack.client.transport.send("GET", f"{url}/metrics", b"", {}, deadline_s())
    found = re.search(rf"^{name} (\S+)$", answer.body.decode(), re.MULTILINE)
    assert found is not None
    return float(found.group(1))


async def falls_to_zero(stack: Stack, server: str, name: str) -> None:
    deadline = time.monotonic() + deadline_s()
    while (value := await gauge(stack, server, name)) > (1 if name == "rollyard_in_flight" else 0):
        # The request for /metrics is itself in flight.
        assert time.monotonic() < deadline, f"{name} of {server} is still {value:g}"
        await asyncio.sleep(0.05)


def environment() -> dict[str, str]:
    """Environment variables for commands that are not started in the repository."""
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


async def command(*arguments: str, here: Path) -> tuple[int, str]:
    """Run a command to its end; return its exit status and its output."""
    pipe, same = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(*arguments, cwd=here, env=environment(), stdout=pipe, stderr=same)
    async with asyncio.timeout(3 * deadline_s()):
        printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()


def essences(output: Path) -> dict[tuple[int, int], Json]:
    """(task, repeat) -> essence of each row; every key once."""
    rows = read_rows(output)
    keys = keys_of(rows)
    assert len(set(keys)) == len(keys), f"{output} holds a rollout twice"
    return {(row["_ng_task_index"], row["_ng_rollout_index"]): reproducible_part(row) for row in rows}


def failures(output: Path) -> list[Json]:
    """The failures file of a collection; none of its rows has a reward."""
    path = output.with_name(f"{output.stem}_failures.jsonl")
    rows = read_rows(path) if path.exists() else []
    assert not any("reward" in row for row in rows)
    return rows


def status(output: Path) -> Json:
    read: Json = orjson.loads(output.with_name(f"{output.stem}_status.json").read_bytes())
    return read
