from __future__ import annotations

import asyncio
import gc
import time
import weakref

import pytest

from rollyard.services.http import loop_lag
from rollyard.services.http.loop_lag import EVERY_S, WINDOW_S, CpuShare, LoopLag
from tests.support.waiting import until
from tests.unit.services.clock import Clock


async def test_the_full_length_of_a_blocked_loop_is_measured() -> None:
    lag = LoopLag()
    lag.start()
    await asyncio.sleep(EVERY_S / 2)
    time.sleep(4 * EVERY_S)
    await until(lambda: lag.worst_s >= 3 * EVERY_S)
    lag.stop()


def test_the_worst_lag_is_kept_for_one_to_two_windows() -> None:
    clock = Clock()
    lag = LoopLag(clock)
    lag.record(5.0)
    clock.now += WINDOW_S
    lag.record(0.1)
    assert lag.worst_s == 5.0
    clock.now += WINDOW_S
    assert lag.worst_s == 0.1
    clock.now += 10 * WINDOW_S
    assert lag.worst_s == 0.0


def test_the_share_of_a_core_is_that_of_the_last_seconds_and_unknown_before() -> None:
    clock, cpu = Clock(), Clock()
    share = CpuShare(clock, cpu)
    shares = []
    for used in [1.0] * 10 + [0.2] * 11:
        shares.append(share.sample())
        clock.now += 1.0
        cpu.now += used
    assert shares[:10] == [0.0] * 10
    assert [shares[10], shares[-1]] == pytest.approx([1.0, 0.2])


async def test_a_cancellation_that_meets_the_timeout_is_still_one() -> None:
    lag, seen = LoopLag(), list[int]()

    async def call() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        try:
            with lag.timeout(0.005):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(task.cancelling())
            raise

    calling = asyncio.create_task(call())
    await asyncio.sleep(0)
    time.sleep(0.03)  # both are due when the loop goes on
    await asyncio.wait([calling])
    lag.stop()
    assert calling.cancelled() and seen == [1]


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_timeout_that_is_not_due_soon_expires_without_its_own_timer(
    monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    monkeypatch.setattr(loop_lag, "SWEEP_S", 0.001)
    lag = LoopLag()
    with pytest.raises(TimeoutError), lag.timeout(0.1) as timeout:
        assert timeout._timer is None
        if stopped:
            lag.stop()
        await asyncio.Event().wait()
    assert not lag.timeouts
    lag.stop()


async def test_a_task_that_ends_slowly_after_its_timeout_is_not_cancelled_again() -> None:
    lag = LoopLag()
    with pytest.raises(TimeoutError), lag.timeout(0.01):
        try:
            await asyncio.Event().wait()
        finally:
            lag.stop()  # starts the timers that are left
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("seconds", [1.0, 100.0])
async def test_a_timeout_leaves_nothing_for_the_garbage_collector(seconds: float) -> None:
    lag = LoopLag()
    with lag.timeout(seconds) as timeout:
        await asyncio.sleep(0)
    ended = weakref.ref(timeout)
    gc.disable()
    try:
        del timeout
        assert ended() is None
    finally:
        gc.enable()
        lag.stop()
