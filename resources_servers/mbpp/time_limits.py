"""Derives the time limit of a task's answers from the run time of its gold program."""

from __future__ import annotations

import math
from typing import Any

from rollyard.services.sandbox.records import MAX_TIMES

GOLD_CPU_S = {123: 9.0}
"""CPU seconds of the gold program with all its tests, by task id: the maximum over several machines (123 took 2.4 to
9 s). The other 973 took less than 0.02 s each."""
_HEADROOM = 2
"""An answer may take this many times as long as the gold program."""


def time_limit_factor(task_id: Any, gold_cpu_s: float | None, limit_s: int) -> int:
    """Return the factor for `limit_s`, the default time limit; 1 if the gold program is fast.

    `gold_cpu_s` is the row's own value; if it is None, the value is looked up by task id.
    """
    known = GOLD_CPU_S.get(task_id, 0.0) if type(task_id) is int else 0.0
    gold = known if gold_cpu_s is None else gold_cpu_s
    return max(1, min(math.ceil(_HEADROOM * gold / limit_s), MAX_TIMES))
