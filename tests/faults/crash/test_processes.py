"""Runs as processes: no process is left behind, runs do not conflict, and errors are named."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.services.runtime.hosting import bind
from tests.support.stacks import AGENT, EXAMPLES, configured

from .harness import COLLECT, WORLD, ForkLauncher, alive, command, essences, forked, forked_collect, ready_pid, until
from .ng_run_process import ng_run

CONFIG = "+config_paths=[configs/sokoban_builtin.yaml]"
READY = "All 3 / 3 servers ready!"
ANY_PORT = "+head_port=0"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda n: n.name)
async def test_a_run_that_ends_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    async with ng_run(tmp_path, CONFIG, ANY_PORT) as run:
        await run.says(READY)
        servers = await run.pids()
        assert len(servers) == 3
        assert all(alive(pid) for pid in servers)
        run.signal(number)
        asked_nicely = number in (signal.SIGINT, signal.SIGTERM)
        assert await run.ends() == (0 if asked_nicely else -number)
        await until(lambda: not any(alive(pid) for pid in servers), "the servers are gone", 15.0)
        await run.leaves_nothing()
        if asked_nicely:
            assert not list(tmp_path.rglob("head.json"))


async def test_a_run_interrupted_while_it_starts_leaves_no_process_behind(tmp_path: Path) -> None:
    chance = random.Random("interrupt the start")
    for _ in range(3):
        async with ng_run(tmp_path, CONFIG, ANY_PORT) as run:
            await run.says("logs in")
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            run.signal(signal.SIGINT)
            # 0 when it was ready just then.
            assert await run.ends() in (0, 130)
            await run.leaves_nothing()


BROKEN = """
import asyncio, os
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, serve

class Broken(Environment[EnvironmentSettings]):
    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=0.0)

class BrokenServer(serve(Broken)):
    async def start(self):
        {start}

server = BrokenServer
"""


def broken_world(folder: Path, start: str) -> None:
    """A server root with an environment that fails at its start, and a config that uses it."""
    (folder / "resources_servers/broken").mkdir(parents=True)
    (folder / "resources_servers/broken/app.py").write_text(BROKEN.format(start=start))
    (folder / "broken.yaml").write_text("broken_world: {resources_servers: {broken: {entrypoint: app.py}}}")


WITH_BROKEN = "+config_paths=[configs/sokoban_builtin.yaml,broken.yaml]"


@pytest.mark.parametrize(
    ("start", "last_words"),
    [
        ("raise RuntimeError('the rooms are not there')", "RuntimeError: the rooms are not there"),
        ("print('out of memory', flush=True); os._exit(3)", "out of memory"),
    ],
    ids=["raises", "dies"],
)
async def test_a_server_that_fails_at_the_start_is_named_with_the_end_of_its_log(
    start: str, last_words: str, tmp_path: Path
) -> None:
    broken_world(tmp_path, start)
    async with ng_run(tmp_path, WITH_BROKEN, ANY_PORT) as run:
        assert await run.ends() == 1
        await run.leaves_nothing()
    assert "ng_run: broken_world ended before it was ready" in run.said
    assert last_words in run.said
    assert "broken_world.log" in run.said
    assert READY not in run.said


async def test_a_server_that_never_becomes_ready_is_named_at_the_deadline(tmp_path: Path) -> None:
    broken_world(tmp_path, "await asyncio.sleep(3600)")
    async with ng_run(tmp_path, WITH_BROKEN, ANY_PORT, "+ready_timeout_s=4") as run:
        assert await run.ends() == 1
        await run.leaves_nothing()
    assert "not ready within 4 s" in run.said
    assert "broken_world" in run.said.partition("not ready within 4 s")[2]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that is in use."""
    sock = bind("127.0.0.1", 0)
    yield sock.getsockname()[1]
    sock.close()


async def test_concurrent_runs_on_a_port_in_use_do_not_conflict_and_commands_find_their_own(
    taken: int, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    port = f"+head_port={taken}"
    async with ng_run(first, CONFIG, port) as one, ng_run(second, CONFIG, port) as two:
        for run in (one, two):
            await run.says(READY)
            assert f"port {taken} is taken, held by process {os.getpid()}" in run.said
            # A server's parent is the run that started it.
            assert {_parent(pid) for pid in await run.pids()} == {run.pid}
        two.signal(signal.SIGINT)
        assert await two.ends() == 0
        await two.leaves_nothing()
        log = first / "said.log"
        assert await forked_collect(_collection(), log).wait() == 0, log.read_text()
        assert {_parent(pid) for pid in await one.pids()} == {one.pid}
    assert len(essences(first / "rollouts.jsonl")) == 5


def _collection() -> list[str]:
    return [
        f"+agent_name={AGENT}",
        f"+input_jsonl_fpath={EXAMPLES}",
        "+output_jsonl_fpath=rollouts.jsonl",
        "+num_repeats=1",
    ]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_server_that_dies_while_its_run_stops_is_not_restarted(tmp_path: Path) -> None:
    launcher = ForkLauncher()
    async with forked(configured(), tmp_path, launcher, restart_pause_s=1.0) as stack:
        pid = ready_pid(stack, WORLD)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: ready_pid(stack, WORLD) is None, "the world is known to be gone")
    assert [process.pid for process in launcher.launched if alive(process.pid)] == []


async def test_a_command_without_a_run_reports_where_it_looked_and_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, nobody listens
        head = f"127.0.0.1:{unused.getsockname()[1]}"
        exit_status, said = await command(*COLLECT, *_collection(), f"+head={head}", here=tmp_path)
    assert exit_status == 1
    assert head in said
    assert "ng_run" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
