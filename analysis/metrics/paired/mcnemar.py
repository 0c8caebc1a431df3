"""Compares binary outcomes of the same tasks: McNemar's test, and Tango's interval for the difference."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from rollyard.records.types import Record

_STEPS = 100


class McNemar(Record):
    """McNemar's test on tasks that have one rollout in each run."""

    both: int
    gained: int
    """Number of tasks solved by the candidate only."""
    lost: int
    """Number of tasks solved by the baseline only."""
    neither: int
    exact_p: float
    """Two-sided p-value of the exact test; 1 if no task changed."""
    mid_p: float
    """The mid-p variant, which is less conservative (Fagerland, Lydersen & Laake 2013, BMC Medical Research Methodology
    13:91)."""


def mcnemar(both: int, gained: int, lost: int, neither: int) -> McNemar:
    exact, mid = p_values(gained, lost)
    return McNemar(both=both, gained=gained, lost=lost, neither=neither, exact_p=exact, mid_p=mid)


def p_values(gained: int, lost: int) -> tuple[float, float]:
    """Return the exact and the mid-p value. Under the hypothesis, each changed task is a gain with probability 1/2."""
    changed, fewer = gained + lost, min(gained, lost)
    if not changed:
        return 1.0, 1.0
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, changed + 1)))])
    count = np.arange(fewer + 1)
    chances = np.exp(logs[changed] - logs[count] - logs[changed - count] - changed * math.log(2))
    exact = min(1.0, 2 * float(chances.sum()))
    return exact, 1.0 if gained == lost else exact - float(chances[fewer])


def tango_interval(gained: int, lost: int, tasks: int, alpha: float) -> tuple[float, float]:
    """Return the score interval for the difference of two paired shares (Tango 1998, Statistics in Medicine 17(8)).

    It contains 0 exactly if McNemar's test without continuity correction does not reject, and it does not collapse if
    no task changed.
    """
    z = NormalDist().inv_cdf(1 - alpha / 2)
    center = (gained - lost) / tasks

    def score(difference: float) -> float:
        return _score(difference, gained, lost, tasks)

    low = -1.0 if center <= -1 else _root(lambda at: score(at) - z, -1.0, center)
    high = 1.0 if center >= 1 else _root(lambda at: score(at) + z, center, 1.0)
    return low, high


def _score(difference: float, gained: int, lost: int, tasks: int) -> float:
    """Return the score statistic of the hypothesis that the candidate's share is higher by `difference`."""
    first = 2 * tasks
    second = -gained - lost + (2 * tasks - gained + lost) * difference
    third = -lost * difference * (1 - difference)
    share_lost = (math.sqrt(max(0.0, second**2 - 4 * first * third)) - second) / (2 * first)
    variance = tasks * (2 * share_lost + difference * (1 - difference))
    distance = gained - lost - tasks * difference
    return math.copysign(math.inf, distance) if variance <= 0 and distance else distance / math.sqrt(variance or 1.0)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function crosses 0."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return (low + high) / 2
