"""Waits for a condition, for tests without an event loop; tests.support.fixtures.until is for those with one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 600.0
"""On two busy cores, what normally takes a second may take many."""


def eventually(description: str, condition: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """Return the first truthy result of `condition`."""
    deadline = time.monotonic() + limit_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {description}"
        time.sleep(0.05)
    return result
