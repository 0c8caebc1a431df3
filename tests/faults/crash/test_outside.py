"""Other programs change the files of a running collection: the command stops with one message, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from rollyard.records.types import Json
from rollyard.services.runtime.stack import Stack
from tests.faults.forked import Forked
from tests.support.stacks import AGENT, PUZZLES, keys_of, load_config, read_rows
from tests.support.waiting import deadline_s, until

from .harness import ForkLauncher, collect_arguments, forked, forked_collect, ready_pid

REPEATS = 4


def start(stack: Stack, output: Path, rows: Path = PUZZLES, log: str = "log") -> Forked:
    arguments = collect_arguments(stack, rows, output, num_repeats=REPEATS, num_samples_in_parallel=4)
    return forked_collect(arguments, output.parent.parent / log)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


async def interfere(stack: Stack, output: Path, act: Callable[[], object], rows: Path = PUZZLES) -> str:
    """The message of a collection that `act` stops."""
    command = start(stack, output, rows)
    await until(lambda: lines(output) >= 20, "20 rollouts")
    act()
    exit_status = await asyncio.wait_for(command.wait(), deadline_s())
    log = (output.parent.parent / "log").read_text()
    assert exit_status == 1, log
    return log


async def check_resume(stack: Stack, output: Path) -> None:
    """Run the same command again and check that every rollout occurs once."""
    command = start(stack, output, log="again")
    assert await asyncio.wait_for(command.wait(), 3 * deadline_s()) == 0, (output.parent.parent / "again").read_text()
    assert keys_of(read_rows(output)) == [(task, repeat) for task in range(200) for repeat in range(REPEATS)]


COIN = """
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, serve

class Coin(Environment[EnvironmentSettings]):
    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)

server = serve(Coin)
"""


def coin(folder: Path) -> Json:
    """An environment in a user's folder, next to one that no row reaches."""
    for name in ("coin", "unrelated"):
        (folder / "resources_servers" / name).mkdir(parents=True)
        (folder / "resources_servers" / name / "app.py").write_text(COIN)
    names = {
        "resources_server": {"type": "resources_servers", "name": "coin"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return {
        "policy_model": {"responses_api_models": {"builtin_model": {"model": "builtin"}}},
        "coin": {"resources_servers": {"coin": {}}},
        "unrelated": {"resources_servers": {"unrelated": {}}},
        AGENT: {"agents": {"simple_agent": names}},
    }


async def test_a_server_that_restarts_with_other_code_stops_the_collection_and_mixes_nothing(tmp_path: Path) -> None:
    project, output = tmp_path / "mine", tmp_path / "results" / "run.jsonl"
    tree, app = coin(project), project / "resources_servers" / "coin" / "app.py"
    config = load_config(config=tree, roots=[project], tmp_path=tmp_path)
    async with forked(config, tmp_path, ForkLauncher()) as stack:

        def edit_and_kill() -> None:
            app.write_text(COIN.replace("1.0", "100.0"))
            pid = ready_pid(stack, "coin")
            assert pid is not None
            os.kill(pid, 9)

        log = await interfere(stack, output, edit_and_kill)
    assert "(changed resources_servers/coin/app.py)" in log
    assert {row["reward"] for row in read_rows(output)} == {1.0}

    (project / "resources_servers" / "unrelated" / "app.py").write_text(COIN + "# more")
    app.write_text(COIN)
    async with forked(config, tmp_path / "second", ForkLauncher()) as stack:
        await check_resume(stack, output)
    app.write_text(COIN.replace("1.0", "100.0"))
    async with forked(config, tmp_path / "third", ForkLauncher()) as stack:
        command = start(stack, output, log="third.log")
        assert await asyncio.wait_for(command.wait(), deadline_s()) == 2
        assert "coin: changed resources_servers/coin/app.py" in (tmp_path / "third.log").read_text()
