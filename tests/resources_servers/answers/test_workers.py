"""Comparing in processes that may be ended."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from resources_servers.answers.workers import Workers
from services.errors import Failure, FailureKind


@pytest.mark.parametrize("answer", ["9^{9^{9^9}}", "1000000!", "10^{10^{10}}"])
async def test_a_comparison_that_takes_too_long_is_a_failure_and_no_verdict(workers: Workers, answer: str) -> None:
    with pytest.raises(Failure) as raised:
        await workers.compare("42", answer)
    assert raised.value.kind is FailureKind.TIMEOUT
    assert not raised.value.terminal
    assert "could not be verified" in raised.value.problem.detail


async def test_after_a_comparison_that_was_ended_the_next_one_is_answered(workers: Workers) -> None:
    with pytest.raises(Failure):
        await workers.compare("42", "9^{9^{9^9}}")
    assert (await workers.compare("x+1", "1+x")).equal


async def test_a_number_of_thousands_of_digits_is_just_wrong(workers: Workers) -> None:
    assert not (await workers.compare("42", r"\binom{20000}{10000}")).equal


async def test_waiting_for_a_free_process_counts_against_no_limit() -> None:
    pool = Workers(1, 0.3)
    try:
        slow = [asyncio.create_task(pool.compare("42", f"9^{{9^{{9^{n}}}}}")) for n in (8, 9)]
        quick = asyncio.create_task(pool.compare("x+1", "1+x"))
        failures = await asyncio.gather(*slow, return_exceptions=True)
        assert [isinstance(failure, Failure) for failure in failures] == [True, True]
        assert (await quick).equal
    finally:
        await pool.close()


async def test_a_cancelled_comparison_leaves_nothing_to_the_next_one(workers: Workers) -> None:
    pool = Workers(1, 5.0)
    try:
        await pool.compare("1+x", "x+1")
        task = asyncio.create_task(pool.compare("42", "9^{9^{9^9}}"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await pool.compare("x+2", "2+x")).equal
    finally:
        await pool.close()


async def test_a_killed_process_is_a_failure_and_is_started_again() -> None:
    pool = Workers(1, 5.0)
    try:
        await pool.compare("1+x", "x+1")
        process = pool._all[0]._process
        assert process is not None
        task = asyncio.create_task(pool.compare("42", "9^{9^{9^9}}"))
        await asyncio.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        with pytest.raises(Failure, match="could not be verified"):
            await task
        assert (await pool.compare("x+2", "2+x")).equal
    finally:
        await pool.close()


async def test_nothing_of_a_closed_pool_is_left_running() -> None:
    pool = Workers(2, 5.0)
    await pool.compare("1+x", "x+1")
    busy = asyncio.create_task(pool.compare("42", "9^{9^{9^9}}"))
    await asyncio.sleep(0.05)
    pids = [worker._process.pid for worker in pool._all if worker._process]
    await pool.close()
    with pytest.raises(Failure):
        await busy
    assert pids
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


async def test_no_answer_is_written_to_a_log(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(Failure):
        await workers.compare("42", "9^{9^{9^9}} + secretword")
    assert "secretword" not in caplog.text
