"""How long a problem's programs may run, from the time that its gold program takes."""

from __future__ import annotations

import math
from typing import Any

from rollyard.services.sandbox.records import MAX_TIMES

GOLD_CPU_S = {123: 9.0}
"""Task id -> seconds of CPU of the gold program with all its tests, the most that was measured on any machine (123: 2.4
to 9 s). All the other 973 took less than 0.02 s."""
_HEADROOM = 2
"""An answer may take this many times the gold's time."""


def time_limit_factor(task_id: Any, gold_cpu_s: float | None, limit_s: int) -> int:
    """How many times `limit_s`, the usual limit, a problem's programs may use; 1 where the gold is fast.

    `gold_cpu_s` is what the row says of its gold; None: what is known of the task.
    """
    known = GOLD_CPU_S.get(task_id, 0.0) if type(task_id) is int else 0.0
    gold = known if gold_cpu_s is None else gold_cpu_s
    return max(1, min(math.ceil(_HEADROOM * gold / limit_s), MAX_TIMES))
