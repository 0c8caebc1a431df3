from __future__ import annotations

import asyncio
import time

from rollyard.services.http.loop_lag import EVERY_S, WINDOW_S, LoopLag


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_blocked_loop_is_measured_with_its_full_length() -> None:
    lag = LoopLag()
    lag.start()
    await asyncio.sleep(EVERY_S / 2)
    time.sleep(4 * EVERY_S)
    while not lag.worst_s:
        await asyncio.sleep(0.01)
    lag.stop()
    assert lag.worst_s >= 3 * EVERY_S


def test_the_worst_is_seen_for_one_window_at_least_and_two_at_most() -> None:
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
