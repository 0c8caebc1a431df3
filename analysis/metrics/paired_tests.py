"""Tests, intervals and power of differences of paired values: McNemar, bootstrap, Holm, minimum detectable effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from rollyard.analysis.metrics.columns import Floats
from rollyard.analysis.metrics.estimators import mean
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


# The paired cluster bootstrap: resamples tasks, each with all its rollouts in both runs.

RESAMPLES = 10_000
_DRAWS = 1 << 22
"""Maximum number of indexes drawn at once."""


@dataclass(frozen=True)
class Bootstrap:
    """The distribution of the mean difference over resampled tasks."""

    low: float
    high: float
    """Bounds of the BCa interval (bias-corrected and accelerated: Efron 1987, JASA 82(397)). It is used because few
    tasks change between good checkpoints, so that the distribution is skewed and the percentile interval is off."""
    p: float
    """Two-sided p-value: the share of resamples whose mean deviates from the observed mean by at least as much as the
    observed mean from 0 (Davison & Hinkley 1997, section 4.4)."""


def bootstrap(differences: Floats, alpha: float, seed: int, resamples: int = RESAMPLES) -> Bootstrap:
    """Resample the tasks' differences, which must not all be equal. The order of the tasks does not matter."""
    ordered = np.sort(differences)
    center = mean(ordered)
    means = np.sort(_means(ordered, np.random.default_rng(seed), resamples))
    low, high = _bca(ordered, center, means, alpha)
    tolerance = 1e-12 * float(np.abs(ordered).max())
    extreme = int((np.abs(means - center) >= abs(center) - tolerance).sum())
    return Bootstrap(low, high, (1 + extreme) / (1 + resamples))


def _means(ordered: Floats, random: np.random.Generator, resamples: int) -> Floats:
    """Return the mean of each resample."""
    tasks = len(ordered)
    values, counts = np.unique(ordered, return_counts=True)
    if len(values) * 10 < tasks:  # as when rollouts are solved or not: only the numbers of each value matter
        return np.asarray(random.multinomial(tasks, counts / tasks, size=resamples) @ values / tasks)
    means = np.empty(resamples)
    size = max(1, _DRAWS // tasks)
    for begin in range(0, resamples, size):
        end = min(begin + size, resamples)
        means[begin:end] = ordered[random.integers(0, tasks, (end - begin, tasks), dtype=np.int32)].mean(axis=1)
    return means


def _bca(differences: Floats, center: float, means: Floats, alpha: float) -> tuple[float, float]:
    normal = NormalDist()
    tolerance = 1e-12 * float(np.abs(differences).max())
    below = ((means < center - tolerance).sum() + (means <= center + tolerance).sum()) / (2 * len(means))
    share = min(max(float(below), 0.5 / len(means)), 1 - 0.5 / len(means))
    off = differences - center
    # The jackknife values of a mean are linear in the differences, so the acceleration has a closed form.
    acceleration = math.fsum((off**3).tolist()) / (6 * math.fsum((off**2).tolist()) ** 1.5)
    bias = normal.inv_cdf(share)

    def bound(level: float) -> float:
        z = bias + normal.inv_cdf(level)
        return float(np.quantile(means, normal.cdf(bias + z / (1 - acceleration * z))))

    return bound(alpha / 2), bound(1 - alpha / 2)


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


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values (1979, Scandinavian Journal of Statistics 6(2)), in the given order.

    Rejecting those below alpha keeps the probability of any wrong rejection below alpha, whatever their dependence.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


# Student's t distribution for any level, without scipy.

_LARGE = 2000
"""Degrees of freedom from which the expansion around the normal quantile is used."""


def two_sided_p(t: float, freedom: int) -> float:
    """Return P(|T| > |t|), from the finite series for integer degrees of freedom (Abramowitz & Stegun 1964, 26.7.3-4).

    Above 2,000 degrees of freedom, it is an approximation with a relative error below 1e-5.
    """
    if freedom > _LARGE:
        return 2 * NormalDist().cdf(-_normal_from_t(abs(t), freedom))
    angle = math.atan2(abs(t), math.sqrt(freedom))
    cosine = math.cos(angle)
    if freedom % 2:
        factors = np.arange(2, freedom - 2, 2) / np.arange(3, freedom - 1, 2)
        terms = math.sin(angle) * cosine * _series(factors, cosine**2, (freedom - 1) // 2)
        inside = 2 / math.pi * (angle + terms)
    else:
        factors = np.arange(1, freedom - 2, 2) / np.arange(2, freedom - 1, 2)
        inside = math.sin(angle) * _series(factors, cosine**2, freedom // 2)
    return min(1.0, max(0.0, 1.0 - inside))


@cache
def quantile(alpha: float, freedom: int) -> float:
    """Return t with P(|T| > t) = alpha."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > alpha:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > alpha else (low, middle)
    return (low + high) / 2


def _series(factors: np.ndarray[tuple[int], np.dtype[np.float64]], square: float, terms: int) -> float:
    """Return 1 + f1 s + f1 f2 s^2 + ..., with `terms` terms."""
    if not terms:
        return 0.0
    return 1.0 + float(np.cumprod(factors[: terms - 1] * square).sum())


def _normal_from_t(t: float, freedom: int) -> float:
    """Return the normal deviate with the same tail (Wallace 1959, Annals of Mathematical Statistics 30(4))."""
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    return scale * math.sqrt(freedom * math.log1p(t * t / freedom))
