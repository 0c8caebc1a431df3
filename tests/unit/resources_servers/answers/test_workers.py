"""Comparisons in worker processes that may be killed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.services.errors import Failure, FailureKind

LONG = ("3!", "99999999!")
"""The algebra compares factorials if the gold answer has one; this one takes minutes."""


async def test_an_answer_that_takes_too_long_is_wrong_and_not_a_failure(workers: WorkerPool) -> None:
    result = await workers.compare(*LONG)
    assert not result.equal
    assert "more than 0.5 s of CPU time" in result.reason


async def test_a_gold_answer_that_takes_too_long_is_a_failure(workers: WorkerPool) -> None:
    with pytest.raises(Failure) as raised:
        await workers.compare("99999999!", "3!")
    assert raised.value.kind is FailureKind.TIMEOUT
    assert not raised.value.terminal
    assert "could not be verified" in raised.value.problem.detail


async def test_an_answer_that_crashes_the_comparison_is_wrong(workers: WorkerPool) -> None:
    for answer in (r"\frac{1}{0}!", "3" + "!" * 40, r"\sqrt" * 40 + "!", "(x+1)^{9999}!"):
        assert not (await workers.compare("3!", answer)).equal


async def test_the_next_comparison_works_after_a_killed_one(workers: WorkerPool) -> None:
    assert not (await workers.compare(*LONG)).equal
    assert (await workers.compare("x+1", "1+x")).equal


async def test_a_number_of_thousands_of_digits_is_wrong_without_a_failure(workers: WorkerPool) -> None:
    assert not (await workers.compare("42", r"\binom{20000}{10000}")).equal


async def test_waiting_for_a_free_process_does_not_count_against_the_limit() -> None:
    pool = WorkerPool(1, 0.3)
    try:
        slow = [asyncio.create_task(pool.compare("3!", f"9999999{n}!")) for n in (8, 9)]
        quick = asyncio.create_task(pool.compare("x+1", "1+x"))
        assert [result.equal for result in await asyncio.gather(*slow)] == [False, False]
        assert (await quick).equal
    finally:
        await pool.close()


async def test_a_cancelled_comparison_does_not_affect_the_next_one(workers: WorkerPool) -> None:
    pool = WorkerPool(1, 5.0)
    try:
        await pool.compare("1+x", "x+1")
        task = asyncio.create_task(pool.compare(*LONG))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await pool.compare("x+2", "2+x")).equal
    finally:
        await pool.close()


async def test_a_killed_process_is_a_failure_and_is_restarted() -> None:
    pool = WorkerPool(1, 5.0)
    try:
        await pool.compare("1+x", "x+1")
        process = pool._all[0]._process
        assert process is not None
        task = asyncio.create_task(pool.compare(*LONG))
        await asyncio.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        with pytest.raises(Failure, match="could not be verified"):
            await task
        assert (await pool.compare("x+2", "2+x")).equal
    finally:
        await pool.close()


async def test_a_closed_pool_leaves_no_process_running() -> None:
    pool = WorkerPool(2, 5.0)
    await pool.compare("1+x", "x+1")
    busy = asyncio.create_task(pool.compare(*LONG))
    await asyncio.sleep(0.05)
    pids = [worker._process.pid for worker in pool._all if worker._process]
    await pool.close()
    with pytest.raises(Failure):
        await busy
    assert pids
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


async def test_answers_are_never_logged(workers: WorkerPool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        await workers.compare("3!", "99999999! + secretword")
    assert "secretword" not in caplog.text
