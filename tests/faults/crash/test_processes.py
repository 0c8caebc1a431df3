"""Runs as processes: no process is left behind, runs do not conflict, and errors are named."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.services.http.listener import bind
from tests.support.processes import alive, parent_of
from tests.support.stacks import AGENT, EXAMPLES, load_config
from tests.support.waiting import until

from .harness import ENVIRONMENT, ForkLauncher, essences, forked, forked_collect, ready_pid
from .ng_run_process import ng_run

CONFIG = "+config_paths=[configs/sokoban_builtin.yaml]"
READY = "All 3 / 3 servers ready!"
ANY_PORT = "+head_port=0"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda n: n.name)
async def test_a_run_that_ends_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    async with ng_run(tmp_path, CONFIG, ANY_PORT) as run:
        await run.prints(READY)
        servers = await run.pids()
        assert len(servers) == 3
        assert all(alive(pid) for pid in servers)
        run.signal(number)
        graceful = number in (signal.SIGINT, signal.SIGTERM)
        assert await run.ends() == (0 if graceful else -number)
        await until(lambda: not any(alive(pid) for pid in servers), "the servers are gone")
        await run.leaves_nothing()
        if graceful:
            assert not list(tmp_path.rglob("head.json"))


async def test_a_run_interrupted_while_it_starts_leaves_no_process_behind(tmp_path: Path) -> None:
    rng = random.Random("interrupt the start")
    for _ in range(3):
        async with ng_run(tmp_path, CONFIG, ANY_PORT) as run:
            await run.prints("logs in")
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            run.signal(signal.SIGINT)
            # 0 if it had just become ready.
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


def write_broken_environment(folder: Path, start: str) -> None:
    """A server root with an environment that fails at its start, and a config that uses it."""
    (folder / "resources_servers/broken").mkdir(parents=True)
    (folder / "resources_servers/broken/app.py").write_text(BROKEN.format(start=start))
    (folder / "broken.yaml").write_text("broken_environment: {resources_servers: {broken: {entrypoint: app.py}}}")


WITH_BROKEN = "+config_paths=[configs/sokoban_builtin.yaml,broken.yaml]"


@pytest.mark.parametrize(
    ("start", "last_words"),
    [
        ("raise RuntimeError('the rooms are missing')", "RuntimeError: the rooms are missing"),
        ("print('out of memory', flush=True); os._exit(3)", "out of memory"),
    ],
    ids=["raises", "dies"],
)
async def test_a_server_that_fails_at_the_start_is_named_with_the_end_of_its_log(
    start: str, last_words: str, tmp_path: Path
) -> None:
    write_broken_environment(tmp_path, start)
    async with ng_run(tmp_path, WITH_BROKEN, ANY_PORT) as run:
        assert await run.ends() == 1
        await run.leaves_nothing()
    assert "broken_environment exited" in run.output
    assert last_words in run.output
    assert "broken_environment.log" in run.output
    assert READY not in run.output


async def test_a_server_that_never_becomes_ready_is_named_at_the_deadline(tmp_path: Path) -> None:
    write_broken_environment(tmp_path, "await asyncio.sleep(3600)")
    async with ng_run(tmp_path, WITH_BROKEN, ANY_PORT, "+ready_timeout_s=4") as run:
        assert await run.ends() == 1
        await run.leaves_nothing()
    assert "within 4 s" in run.output
    assert "broken_environment" in run.output.partition("within 4 s")[2]


@pytest.fixture
def port_in_use() -> Iterator[int]:
    """A port that is in use."""
    sock = bind("127.0.0.1", 0)
    yield sock.getsockname()[1]
    sock.close()


async def test_concurrent_runs_on_a_port_in_use_do_not_conflict_and_commands_find_their_own(
    port_in_use: int, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    port = f"+head_port={port_in_use}"
    async with ng_run(first, CONFIG, port) as first_run, ng_run(second, CONFIG, port) as second_run:
        for run in (first_run, second_run):
            await run.prints(READY)
            assert f"process {os.getpid()}" in run.output
            # A server's parent is the run that started it.
            assert {parent_of(pid) for pid in await run.pids()} == {run.pid}
        second_run.signal(signal.SIGINT)
        assert await second_run.ends() == 0
        await second_run.leaves_nothing()
        log = first / "collect.log"
        collection = [f"+agent_name={AGENT}", f"+input_jsonl_fpath={EXAMPLES}", "+output_jsonl_fpath=rollouts.jsonl"]
        assert await forked_collect([*collection, "+num_repeats=1"], log).wait() == 0, log.read_text()
        assert {parent_of(pid) for pid in await first_run.pids()} == {first_run.pid}
    assert len(essences(first / "rollouts.jsonl")) == 5


async def test_a_server_that_dies_while_its_run_stops_is_not_restarted(tmp_path: Path) -> None:
    launcher = ForkLauncher()
    async with forked(load_config(), tmp_path, launcher, restart_pause_s=1.0) as stack:
        pid = ready_pid(stack, ENVIRONMENT)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: ready_pid(stack, ENVIRONMENT) is None, "the environment is reported as gone")
    assert [process.pid for process in launcher.launched if alive(process.pid)] == []
