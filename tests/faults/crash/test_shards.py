"""Several jobs collect one output, each its share: killed at any instant, it equals an uninterrupted run."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.records.manifest import Manifest
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Shard
from rollyard.records.types import Json
from rollyard.services.rollouts.shards import merge, shard_files
from rollyard.services.rollouts.store import JsonLines
from rollyard.services.runtime.stack import Stack
from tests.faults.forked import Forked
from tests.support.rollout_files import write
from tests.support.stacks import PUZZLES, collect, colocated, keys_of, load_config, read_rows
from tests.support.waiting import until

from .harness import collect_arguments, command, essences, failures, forked, forked_collect, status

MERGE = (sys.executable, "-c", "from rollyard.cli.merge import main; main()")
TASKS, REPEATS = 60, 4
SLOW_POLICY = "policy_model.responses_api_models.builtin_model.latency_s=0.05"


@pytest_asyncio.fixture(scope="module")
async def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Json]:
    folder = tmp_path_factory.mktemp("unbroken")
    async with colocated(load_config(), folder) as stack:
        state, _ = await collect(stack, folder / "rollouts.jsonl", rows=PUZZLES, limit=TASKS, repeats=REPEATS)
    assert state == "complete"
    return essences(folder / "rollouts.jsonl")


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with forked(load_config(SLOW_POLICY), tmp_path) as running:
        yield running


def start(stack: Stack, folder: Path, shard: str, parallel: int = 2) -> Forked:
    options: dict[str, object] = {"limit": TASKS, "num_repeats": REPEATS, "responses_create_params.temperature": 0.8}
    options |= {"num_samples_in_parallel": parallel, "shard": shard}
    arguments = collect_arguments(stack, PUZZLES, folder / "rollouts.jsonl", **options)
    return forked_collect(arguments, folder / f"{shard.replace('/', '-of-')}.log")


def rows(output: Path, number: int, count: int) -> int:
    path = Shard(number, count).output(output)
    return path.read_bytes().count(b"\n") if path.exists() else 0


async def test_four_jobs_of_which_two_are_killed_and_continued_by_three(
    stack: Stack, tmp_path: Path, uninterrupted: dict[tuple[int, int], Json]
) -> None:
    output = tmp_path / "rollouts.jsonl"
    first = [start(stack, tmp_path, f"{number}/4") for number in range(1, 5)]
    await until(lambda: all(rows(output, number, 4) > 5 for number in (1, 2)), "two jobs have rollouts")
    for job in first[:2]:
        job.kill()
    assert [await job.wait() for job in first] == [-signal.SIGKILL, -signal.SIGKILL, 0, 0]
    held = sum(rows(output, number, 4) for number in range(1, 5))
    assert not output.exists()
    partly, printed = await command(*MERGE, str(output), here=tmp_path)
    assert (partly, f"{held} of {TASKS * REPEATS}" in printed) == (1, True), printed
    second = [start(stack, tmp_path, f"{number}/3") for number in range(1, 4)]
    assert [await job.wait() for job in second] == [0, 0, 0], [log.read_text() for log in tmp_path.glob("*-3.log")]
    assert essences(output) == uninterrupted
    assert failures(output) == []
    assert status(output)["state"] == "complete"
    assert shard_files(output) == []
    content = output.read_bytes()
    assert (await command(*MERGE, str(output), here=tmp_path))[0] == 0
    assert output.read_bytes() == content


async def test_jobs_killed_at_random_instants_lose_and_repeat_nothing(
    stack: Stack, tmp_path: Path, uninterrupted: dict[tuple[int, int], Json]
) -> None:
    output, rng = tmp_path / "rollouts.jsonl", random.Random("shards")
    for _ in range(12):
        count = rng.randint(1, 4)
        jobs = [start(stack, tmp_path, f"{n}/{count}", 8) for n in range(1, count + 1)]
        for job in jobs:
            await job.ended_within(rng.uniform(0.0, 0.8))
            job.kill()
        for job in jobs:
            await job.wait()
    last = [start(stack, tmp_path, f"{number}/2", 16) for number in (1, 2)]
    assert [await job.wait() for job in last] == [0, 0], [log.read_text() for log in tmp_path.glob("*-2.log")]
    assert essences(output) == uninterrupted
    assert shard_files(output) == []


async def test_a_merge_that_is_killed_within_a_line_is_finished_by_the_next(tmp_path: Path) -> None:
    output = tmp_path / "x.jsonl"
    every = [(task, repeat) for task in range(10) for repeat in range(2)]
    manifest = Manifest(identity={"rows": 10, "num_repeats": 2}, versions={}, created=0.0)
    for shard in (Shard(1, 2), Shard(2, 2)):
        lines = [
            {"_ng_task_index": key[0], "_ng_rollout_index": key[1], "reward": 1.0} for key in every if key in shard
        ]
        write(shard.output(output), lines)
        RolloutPaths(shard.output(output)).manifest.write_bytes(manifest.model_dump_json().encode())
    for after in (0, 3, 0, 9):
        assert await Forked(_merge_until_killed, str(output), after).wait() == -signal.SIGKILL
    assert merge(output).progress.measured == len(every)
    assert keys_of(read_rows(output)) == every
    assert (len(list(tmp_path.glob("x_torn*"))), shard_files(output)) == (4, [])


def _merge_until_killed(output: str, after: int) -> None:
    append, written = JsonLines.append, 0

    def die(lines: JsonLines, line: bytes) -> None:
        nonlocal written
        if written == after:
            with lines.path.open("ab") as file:
                file.write(line[: len(line) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        written += 1
        append(lines, line)

    JsonLines.append = die  # type: ignore[method-assign,assignment]
    merge(Path(output))
