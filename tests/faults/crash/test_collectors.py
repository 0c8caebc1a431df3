"""One command with several collector processes: whatever is killed, the files are those of one collector."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Shard
from rollyard.records.types import Json
from rollyard.services.rollouts.shards import shard_files
from rollyard.services.runtime.stack import Stack
from tests.faults.forked import Forked
from tests.support.processes import alive
from tests.support.rollout_files import write
from tests.support.stacks import PUZZLES, load_config
from tests.support.waiting import until

from .harness import collect_arguments, essences, failures, forked, forked_collect, status

TASKS, REPEATS = 40, 4
SLOW_POLICY = "policy_model.responses_api_models.builtin_model.latency_s=0.05"


@pytest_asyncio.fixture(scope="module")
async def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of one collector."""
    output = tmp_path_factory.mktemp("alone") / "rollouts.jsonl"
    async with forked(load_config(), output.parent) as stack:
        assert await start(stack, output, 1).wait() == 0
    return output


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with forked(load_config(SLOW_POLICY), tmp_path) as running:
        yield running


def start(stack: Stack, output: Path, collectors: int, **more: object) -> Forked:
    options: dict[str, object] = {"limit": TASKS, "num_repeats": REPEATS, "responses_create_params.temperature": 0.8}
    options |= {"num_collectors": collectors, "num_samples_in_parallel": 8, **more}
    return forked_collect(collect_arguments(stack, PUZZLES, output, **options), output.with_name(f"{collectors}.log"))


async def pids(output: Path, collectors: int) -> list[int]:
    """Wait until each collector has stored rollouts, and return their process ids."""
    shards = [Shard(number, collectors).output(output) for number in range(1, collectors + 1)]
    await until(lambda: all(path.exists() and path.stat().st_size for path in shards), "each has stored a rollout")
    return [int(orjson.loads(RolloutPaths(path).status.read_bytes())["pid"]) for path in shards]


def identity(output: Path) -> Json:
    found: Json = orjson.loads(RolloutPaths(output).manifest.read_bytes())
    return {key: found[key] for key in ("identity", "output", "input", "versions")}


def names(output: Path) -> set[str]:
    return {path.name for path in output.parent.glob("rollouts*")}


async def test_a_collector_that_is_killed_loses_no_rollout_and_repeats_none(stack: Stack, alone: Path) -> None:
    output = stack.folder.base / "rollouts.jsonl"
    command = start(stack, output, 3)
    os.kill((await pids(output, 3))[1], signal.SIGKILL)
    assert await command.wait() == 0
    printed = output.with_name("3.log").read_text()
    assert "collector 2/3 was killed by signal 9; another one continues its share" in printed
    assert f"collected: {TASKS * REPEATS} of {TASKS * REPEATS} rollouts measured" in printed
    assert (essences(output), failures(output), names(output)) == (essences(alone), [], names(alone))
    assert identity(output) == identity(alone)
    compared = ("state", "expected", "measured", "tasks", "failed", "successes", "mean_reward", "reward_stderr")
    assert [status(output)[name] for name in compared] == [status(alone)[name] for name in compared]


async def test_collectors_end_with_their_command_and_another_number_continues(stack: Stack, alone: Path) -> None:
    output = stack.folder.base / "rollouts.jsonl"
    command = start(stack, output, 3)
    collectors = await pids(output, 3)
    command.kill()
    await until(lambda: not any(map(alive, collectors)), "the collectors have ended")
    assert len(shard_files(output)) == 3
    command = start(stack, output, 2)
    await pids(output, 2)
    command.terminate()
    assert await command.wait() == 130
    assert status(output)["state"] == "interrupted"
    assert shard_files(output) == []
    held = essences(output)
    assert len(held) == status(output)["measured"] < TASKS * REPEATS
    assert [await start(stack, output, 4).wait(), await start(stack, output, 1).wait()] == [0, 0]
    assert essences(output) == essences(alone)
    assert names(output) == names(alone)


async def test_after_ctrl_c_the_episodes_in_flight_finish_and_one_file_is_left(stack: Stack) -> None:
    output = stack.folder.base / "rollouts.jsonl"
    command = start(stack, output, 2)
    await pids(output, 2)
    command.signal(signal.SIGINT)
    assert await command.wait() == 130
    printed = output.with_name("2.log").read_text()
    assert printed.count("finishing the") == 1
    assert (status(output)["state"], status(output)["in_flight"], shard_files(output)) == ("interrupted", 0, [])
    assert f"{len(essences(output))} of {TASKS * REPEATS} rollouts measured" in printed


async def test_the_failure_rate_is_that_of_all_collectors_together(stack: Stack) -> None:
    output = stack.folder.base / "rollouts.jsonl"
    room = {"num_boxes": 1, "responses_create_params": {"input": "Solve."}}
    rows = [{**room, "dim_room": size, "seed": seed} for seed in range(240) for size in ([6, 6], [1, 1])]
    puzzles = write(output.with_name("input.jsonl"), rows)
    command = start(stack, output, 4, input_jsonl_fpath=puzzles, limit=400, num_repeats=1, max_failure_rate=0.25)
    assert await command.wait() == 1
    printed, found = output.with_name("4.log").read_text(), status(output)
    assert "plan: 400 tasks x 1 = 400 rollouts" in printed
    assert "rollouts failed, more than max_failure_rate=0.25; most frequent kind: bad_task" in found["note"]
    assert (printed.count("first failure of kind bad_task"), printed.count("  stopped ")) == (1, 1)
    assert found["state"] == "stopped" and found["measured"] == len(essences(output)) < 200
    assert found["failed"] == found["failed_attempts"] == found["failures"]["bad_task"] == len(failures(output)) < 200
