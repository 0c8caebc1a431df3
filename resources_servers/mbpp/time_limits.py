"""Derives the time limit for a task's answers from the run time of its gold program."""

from __future__ import annotations

import math
from typing import Any

from rollyard.services.sandbox.records import MAX_TIMES

GOLD_CPU_S = {123: 9.0}
"""CPU seconds that the gold program takes for all its tests, by task ID: the maximum over several machines. Task 123
took 2.4 to 9 s, the other 973 tasks less than 0.02 s each."""
_HEADROOM = 2
"""An answer may take this many times as long as the gold program."""


def time_limit_factor(task_id: Any, gold_cpu_s: float | None, limit_s: int) -> int:
    """Return the factor by which to multiply the default time limit, `limit_s`. It is 1 if the gold program is fast.

    `gold_cpu_s` is the value from the row. If it is None, the value is looked up by task ID.
    """
    known = GOLD_CPU_S.get(task_id, 0.0) if type(task_id) is int else 0.0
    gold = known if gold_cpu_s is None else gold_cpu_s
    return max(1, min(math.ceil(_HEADROOM * gold / limit_s), MAX_TIMES))
