"""Computes which differences a comparison can detect: the minimum detectable effect, and the number of tasks needed.

The two-sided paired t test over tasks, with normal quantiles and Guenther's correction for the t distribution (Guenther
1981, The American Statistician 35(4)):

    tasks = (z(1 - alpha/2) + z(power))^2 (deviation / effect)^2 + z(1 - alpha/2)^2 / 2
"""

from __future__ import annotations

import math
from statistics import NormalDist

POWER = 0.8


def detectable_effect(deviation: float, tasks: int, alpha: float, power: float = POWER) -> float | None:
    """Return the smallest true difference that the test detects with the given power.

    `deviation` is the standard deviation of the tasks' differences. None if it is 0 or there are too few tasks.
    """
    z = NormalDist().inv_cdf(1 - alpha / 2)
    freedom = tasks - z**2 / 2
    if deviation <= 0 or freedom <= 0:
        return None
    return (z + NormalDist().inv_cdf(power)) * deviation / math.sqrt(freedom)


def tasks_needed(deviation: float, effect: float, alpha: float, power: float = POWER) -> int | None:
    """Return the number of tasks needed to detect a true difference of `effect`; None if `deviation` is 0."""
    if deviation <= 0:
        return None
    z = NormalDist().inv_cdf(1 - alpha / 2)
    return math.ceil(((z + NormalDist().inv_cdf(power)) * deviation / effect) ** 2 + z**2 / 2)
