"""Comparisons in worker processes that may be killed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.resources_servers.answers.equality import Comparison
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from tests.support.waiting import until

LONG = ("3!", "99999999!+y")
"""The algebra compares factorials if the gold answer has one; this one takes minutes."""


async def test_an_answer_that_takes_too_long_is_wrong_and_never_logged_and_a_gold_answer_is_a_failure(
    workers: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        result = await workers.compare(*LONG)
        await workers.compare("3!", "99999999! + secretword")
    assert (result.equal, "0.5 s" in result.reason, "secretword" in caplog.text) == (False, True, False)
    assert (await workers.compare("x+1", "1+x")).equal
    with pytest.raises(Failure) as raised:
        await workers.compare("99999999!+y", "3!")
    assert (raised.value.kind, raised.value.terminal) == (FailureKind.TIMEOUT, False)
    assert "'3!'" in raised.value.problem.detail


@pytest.mark.parametrize(
    ("gold", "answers"),
    [
        ("3!", [r"\frac{1}{0}!", "3" + "!" * 40, r"\sqrt" * 40 + "!", "(x+1)^{9999}!"]),
        ("x+1", ["9^{9^9}", "2^{9^9}+y"]),
        ("f(x)", ["(y+1)^{10000}(x+2)^{1000}"]),
        ("42", [r"\binom{20000}{10000}"]),
    ],
)
async def test_an_answer_that_crashes_the_comparison_or_is_expensive_is_wrong_and_no_failure(
    workers: WorkerPool, gold: str, answers: list[str]
) -> None:
    assert not any([(await workers.compare(gold, answer)).equal for answer in answers])


async def test_all_comparisons_of_one_answer_share_its_cpu_time(workers: WorkerPool) -> None:
    budget = workers.budget()
    assert not (await workers.compare(*LONG, budget=budget)).equal
    assert budget.left_s <= 0
    late = await workers.compare("x+1", "1+x", budget=budget)
    assert (late.equal, "0.5 s" in late.reason) == (False, True)


async def test_waiting_for_a_free_process_does_not_count_against_the_limit(workers: WorkerPool) -> None:
    slow = asyncio.create_task(workers.compare("3!", "99999998!+y"))
    quick = asyncio.create_task(workers.compare("x+1", "1+x"))
    assert not (await slow).equal
    assert (await quick).equal


async def start_long_comparison(pool: WorkerPool) -> asyncio.Task[Comparison]:
    """Start a comparison that runs until it is killed, and wait until the pool's process has it."""
    assert (await pool.compare("x+2", "2+x")).equal
    task = asyncio.create_task(pool.compare(*LONG))
    await until(lambda: pool._all[0]._busy)
    return task


async def test_a_killed_process_is_a_failure_and_neither_it_nor_a_cancelled_comparison_affects_the_next_one(
    patient_workers: WorkerPool,
) -> None:
    task = await start_long_comparison(patient_workers)
    process = patient_workers._all[0]._process
    assert process is not None
    os.killpg(process.pid, signal.SIGKILL)
    with pytest.raises(Failure) as raised:
        await task
    assert raised.value.kind is FailureKind.SERVER_ERROR
    task = await start_long_comparison(patient_workers)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await patient_workers.compare("x+2", "2+x")).equal


async def test_a_closed_pool_leaves_no_process_running(patient_workers: WorkerPool) -> None:
    busy = await start_long_comparison(patient_workers)
    process = patient_workers._all[0]._process
    assert process is not None
    await patient_workers.close()  # the next comparison starts another process
    with pytest.raises(Failure):
        await busy
    assert not Path(f"/proc/{process.pid}").exists()
