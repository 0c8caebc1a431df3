"""Other programs change the files of a running collection: the command stops with one message, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from rollyard.records.types import Json
from rollyard.services.runtime.stack import Stack
from tests.support.stacks import AGENT, PUZZLES, SOKOBAN, keys_of, load_config, read_rows
from tests.support.waiting import until

from .harness import Forked, ForkLauncher, forked, forked_collect, ready_pid

REPEATS = 4


@pytest_asyncio.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with forked(load_config(config=SOKOBAN), tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "results" / "run.jsonl"


def start(stack: Stack, output: Path, rows: Path = PUZZLES, log: str = "log", *more: str) -> Forked:
    options = {
        "head": stack.head_url.removeprefix("http://"),
        "agent_name": AGENT,
        "input_jsonl_fpath": rows,
        "output_jsonl_fpath": output,
        "num_repeats": REPEATS,
        "num_repeats_add_seed": "true",
        "num_samples_in_parallel": 4,
    }
    arguments = [f"+{name}={value}" for name, value in options.items()]
    return forked_collect([*arguments, *more], output.parent.parent / log)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


async def interfere(stack: Stack, output: Path, act: Callable[[], object], rows: Path = PUZZLES) -> str:
    """The message of a collection that `act` stops."""
    command = start(stack, output, rows)
    await until(lambda: lines(output) >= 20, "20 rollouts")
    act()
    exit_status = await asyncio.wait_for(command.wait(), 120.0)
    log = (output.parent.parent / "log").read_text()
    assert exit_status == 1, log
    return log


async def check_resume(stack: Stack, output: Path) -> None:
    """Run the same command again and check that every rollout occurs once."""
    command = start(stack, output, log="again")
    assert await asyncio.wait_for(command.wait(), 300.0) == 0, (output.parent.parent / "again").read_text()
    assert keys_of(read_rows(output)) == [(task, repeat) for task in range(200) for repeat in range(REPEATS)]


async def test_a_removed_output_is_recovered_and_resumed(stack: Stack, output: Path) -> None:
    log = await interfere(stack, output, lambda: shutil.rmtree(output.parent))
    recovered = output.with_name("run_recovered.jsonl")
    assert str(recovered) in log and len(read_rows(recovered)) >= 20
    recovered.rename(output)
    await check_resume(stack, output)


async def test_a_truncated_output_has_neither_holes_nor_joined_lines(stack: Stack, output: Path) -> None:
    log = await interfere(stack, output, lambda: os.truncate(output, output.stat().st_size // 2))
    assert "was truncated from" in log and b"\0" not in output.read_bytes()
    await check_resume(stack, output)


async def test_a_moved_output_is_named(stack: Stack, output: Path) -> None:
    moved = output.with_name("old.jsonl")
    log = await interfere(stack, output, lambda: output.rename(moved))
    assert f"moved to {moved}" in log and len(read_rows(moved)) >= 20 and not output.exists()


async def test_an_input_that_is_edited_while_it_is_read_stops_before_the_row(stack: Stack, output: Path) -> None:
    rows = output.parent.parent / "rows.jsonl"
    shutil.copy(PUZZLES, rows)
    before = sum(len(line) for line in rows.read_bytes().splitlines(keepends=True)[:150])

    def edit() -> None:
        with rows.open("r+b") as file:  # in place, so that the collection never finds the file empty
            file.seek(before)
            file.write(b" ")

    log = await interfere(stack, output, edit, rows)
    assert "rows.jsonl: line 151 changed" in log
    assert {row["_ng_task_index"] for row in read_rows(output)} == set(range(150))


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
        assert await asyncio.wait_for(command.wait(), 60.0) == 2
        assert "coin: changed resources_servers/coin/app.py" in (tmp_path / "third.log").read_text()


async def test_code_that_is_reloaded_during_a_collection_marks_each_row_or_stops_it(tmp_path: Path) -> None:
    project, output = tmp_path / "mine", tmp_path / "results" / "run.jsonl"
    tree, app = coin(project), project / "resources_servers" / "coin" / "app.py"
    config = load_config(config=tree, roots=[project], tmp_path=tmp_path)
    async with forked(config, tmp_path, ForkLauncher(), reloads=True) as stack:
        # Each of the three reloads may interrupt the same rollout.
        command = start(stack, output, PUZZLES, "log", "+accept_changed_code=true", "+max_attempts=10")
        rows = 0
        for reward in ("100.0", "1.0", "10.0"):
            least = rows + 20
            await until(lambda least=least: lines(output) >= least, "20 rollouts more")  # type: ignore[misc]
            app.write_text(COIN.replace("1.0", reward))
            await stack.reload("coin")
            rows = lines(output)
        assert await asyncio.wait_for(command.wait(), 120.0) == 0, (tmp_path / "log").read_text()
        marks = {(row["reward"], row.get("_ng_code", "")) for row in read_rows(output)}
        assert len({mark for _, mark in marks}) == len({reward for reward, _ in marks}) == len(marks) == 3
        assert (1.0, "") in marks
        manifest = orjson.loads((output.parent / "run_manifest.json").read_bytes())
        assert {mark for _, mark in marks} - {""} == {version["digest"] for version in manifest["code"][1:]}

        second = output.with_name("second.jsonl")
        command = start(stack, second, log="second")
        await until(lambda: lines(second) >= 20, "20 rollouts")
        app.write_text(COIN.replace("1.0", "7.0"))
        await stack.reload("coin")
        assert await asyncio.wait_for(command.wait(), 120.0) == 1
        log = (tmp_path / "second").read_text()
        assert "(coin: changed resources_servers/coin/app.py)" in log
        assert {row["reward"] for row in read_rows(second)} == {10.0}
