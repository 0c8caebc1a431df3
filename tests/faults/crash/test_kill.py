"""Every part is killed fifty times: the final output equals that of an uninterrupted run."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.records.types import Json
from rollyard.services.rollouts.collector import CollectionLimits
from rollyard.services.runtime.stack import Stack
from tests.support.stacks import AGENT, PUZZLES, collect, colocated, load_config
from tests.support.waiting import until

from .harness import (
    COLLECT,
    ENVIRONMENT,
    POLICY,
    collect_arguments,
    command,
    essences,
    failures,
    forked,
    forked_collect,
    ready_pid,
)

KILLS = 50
TASKS, REPEATS = 30, 3
SLOW_POLICY = "policy_model.responses_api_models.builtin_model.latency_s=0.02"
"""Makes an episode of about seven turns last long enough to be hit by a kill."""

AMPLE = CollectionLimits(parallel=8, max_attempts=1000, first_pause_s=0.01, longest_pause_s=0.05, max_failure_rate=1.0)
"""Fifty kills within seconds hit the same rollouts repeatedly and would use up three attempts, which other tests cover.
Here every rollout must be measured."""

Essences = dict[tuple[int, int], Json]


@pytest_asyncio.fixture(scope="module")
async def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Essences:
    """The output of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("unbroken")
    async with colocated(load_config(), folder) as stack:
        state, _ = await collect(stack, folder / "rollouts.jsonl", rows=PUZZLES, limit=TASKS, repeats=REPEATS)
    assert state == "complete"
    return essences(folder / "rollouts.jsonl")


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with forked(load_config(SLOW_POLICY), tmp_path) as running:
        yield running


@pytest.mark.parametrize("victim", [AGENT, ENVIRONMENT, POLICY])
async def test_a_server_killed_fifty_times_changes_no_rollout(
    victim: str, stack: Stack, tmp_path: Path, uninterrupted: Essences
) -> None:
    rng = random.Random(f"kill {victim}")
    outputs = (tmp_path / f"rollouts{number}.jsonl" for number in itertools.count())
    failed_attempts = 0
    while failed_attempts <= KILLS / 2:  # on a busy machine, most kills can hit a server before its first request
        killing = asyncio.create_task(_kill_repeatedly(stack, victim, rng))
        while not killing.done():
            output = next(outputs)
            state, _ = await collect(stack, output, rows=PUZZLES, limit=TASKS, repeats=REPEATS, limits=AMPLE)
            assert state == "complete"
            assert essences(output) == uninterrupted
            failed_attempts += len(failures(output))
        await killing


async def _kill_repeatedly(stack: Stack, victim: str, rng: random.Random) -> None:
    for number in range(KILLS):
        await until(lambda: ready_pid(stack, victim) is not None, f"{victim} is back after {number} kills")
        await asyncio.sleep(rng.uniform(0.0, 0.15))
        pid = ready_pid(stack, victim)
        assert pid is not None, f"{victim} died for another reason"
        os.kill(pid, signal.SIGKILL)
        await until(lambda gone=pid: ready_pid(stack, victim) != gone, f"{victim} is reported as gone")  # type: ignore[misc]


@pytest.mark.smoke
async def test_a_collector_killed_often_and_resumed_loses_nothing_and_repeats_nothing(
    stack: Stack, tmp_path: Path, uninterrupted: Essences
) -> None:
    rng = random.Random("kill the collector")
    kills, numbers = 0, itertools.count()
    parameters = {"responses_create_params.temperature": 0.8, "num_samples_in_parallel": 8}

    def arguments(output: Path) -> list[str]:
        return collect_arguments(stack, PUZZLES, output, limit=TASKS, num_repeats=REPEATS, **parameters)

    output = tmp_path / f"rollouts{next(numbers)}.jsonl"
    while kills < KILLS:
        collector = forked_collect(arguments(output), tmp_path / "collector.log")
        await collector.ended_within(rng.uniform(0.0, 0.4))
        collector.kill()
        if (exit_status := await collector.wait()) == -signal.SIGKILL:
            kills += 1
            continue
        assert exit_status == 0, (tmp_path / "collector.log").read_text()
        assert essences(output) == uninterrupted
        output = tmp_path / f"rollouts{next(numbers)}.jsonl"
    exit_status, output_text = await command(*COLLECT, *arguments(output), here=tmp_path)
    assert exit_status == 0, output_text
    assert essences(output) == uninterrupted
    assert failures(output) == []
