"""Waits for conditions. How long a test waits before it fails is one setting, scaled by the speed of the machine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_VARIABLE = "ROLLYARD_TESTS_DEADLINE_S"
_QUIET_S = 300.0
"""The deadline where `_LOOPS` take at most `_QUIET_LOOPS_S`. What tests wait for normally takes about a second."""
_LOOPS = 2_000_000
_QUIET_LOOPS_S = 0.15
_MAX_FACTOR = 4.0


def deadline_s() -> float:
    """Return how long a test waits for anything before it fails: 300 s on a quiet machine, up to 1,200 s on a busy one.

    Measured once, by the first process of a test run; its workers inherit the value. Only what hangs takes as long, so
    tests state no deadlines of their own, except where the deadline itself is tested.
    """
    if _VARIABLE not in os.environ:
        start = time.monotonic()
        for _ in range(_LOOPS):
            pass
        factor = (time.monotonic() - start) / _QUIET_LOOPS_S
        os.environ[_VARIABLE] = f"{_QUIET_S * min(max(factor, 1.0), _MAX_FACTOR):.0f}"
    return float(os.environ[_VARIABLE])


def short_s() -> float:
    """Return a time limit that what hangs exceeds, and what answers does not, also on a busy machine."""
    return deadline_s() / 200


def eventually(description: str, condition: Callable[[], T], limit_s: float | None = None) -> T:
    """Return the first truthy result of `condition`; for tests without an event loop."""
    limit_s = limit_s or deadline_s()
    deadline = time.monotonic() + limit_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {description}"
        time.sleep(0.05)
    return result


async def until(condition: Callable[[], object], description: str = "", limit_s: float | None = None) -> None:
    """Wait until `condition` is true; for tests with an event loop."""
    limit_s = limit_s or deadline_s()
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {description}"
        await asyncio.sleep(0.002)
