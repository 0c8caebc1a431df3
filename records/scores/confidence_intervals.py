"""Computes 95% confidence intervals of means over tasks in plain Python, so the collector does not need numpy."""

from __future__ import annotations

import math
from statistics import NormalDist

_T_975 = (
    *(12.7062047362, 4.3026527297, 3.1824463053, 2.7764451052, 2.5705818356),
    *(2.4469118511, 2.3646242516, 2.3060041352, 2.2621571629, 2.2281388520),
)
_Z = NormalDist().inv_cdf(0.975)


def t_975(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t distribution, accurate to 1e-5.

    Uses a table for up to 10 degrees of freedom, and the expansion around the normal quantile for more (Abramowitz &
    Stegun 1964, 26.7.5).
    """
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def share_bounds(share: float, tasks: int, alpha: float = 0.05) -> tuple[float, float] | None:
    """Return the interval for a share if all tasks have the same value, so no standard error can be estimated.

    Its level is 1 - `alpha`. For a share of 0 or 1, it is the exact one-sided bound, 1 - alpha^(1/tasks), which at 95%
    is about 3 / tasks (the rule of three: Hanley & Lippman-Hand 1983, JAMA 249(13)). The bound holds regardless of how
    the repeats of a task are correlated, because a value in 0..1 with mean m is 0 with a probability of at most 1 - m.
    For any other share, it is Wilson's score interval (1927) with each task as one trial, or None for a single task.
    """
    if share in (0.0, 1.0):
        reach = 1.0 - alpha ** (1.0 / tasks)
        return (0.0, reach) if share == 0.0 else (1.0 - reach, 1.0)
    if tasks < 2:
        return None
    z = NormalDist().inv_cdf(1 - alpha / 2)
    scale = 1.0 + z**2 / tasks
    middle = (share + z**2 / (2 * tasks)) / scale
    reach = z / scale * math.sqrt(share * (1 - share) / tasks + z**2 / (4 * tasks**2))
    return middle - reach, middle + reach


def unchanged_bound(tasks: int) -> float:
    """Return the exact two-sided 95% bound on the mean of differences in -1..1 if all observed differences are 0.

    It follows from the fact that a difference with mean m is nonzero with a probability of at least |m|.
    """
    return 1.0 - float(0.025 ** (1.0 / tasks))
