"""Implements the estimators as pure functions of arrays and cites the source of each formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rollyard.analysis.metrics.columns import Floats, Ints
from rollyard.records.scores import Spread, share_bounds, t_975
from rollyard.records.types import Record


class Estimate(Record):
    """A mean with its 95% interval, clustered by task."""

    mean: float
    stderr: float | None = None
    """None for a single task, or if all tasks have the same value."""
    low: float | None = None
    high: float | None = None
    """Bounds of the interval, mean ± t(tasks - 1) * stderr. If there is no standard error because all tasks have the
    same value, the interval of a share is derived from the number of tasks (`records.scores.share_bounds`). None
    if there is no interval."""


class MeanSpread(Spread):
    """A distribution over rollouts, and its mean with an interval."""

    estimate: Estimate | None = None


_EXACT_SIGN_TEST = 1000


def mean(values: Floats) -> float:
    """Return the correctly rounded mean, which does not depend on the order of the rollouts."""
    return total(values) / len(values)


def total(values: Floats) -> float:
    """Return the correctly rounded sum."""
    return math.fsum(values.tolist())  # three times as fast as without tolist


def estimate(center: float, variance: float, clusters: int, *, is_share: bool = False) -> Estimate:
    """Return a mean with its 95% interval, clipped to 0..1 for a share. See `Estimate`."""
    if clusters < 2 or not variance > 0:
        bounds = share_bounds(center, clusters) if is_share else None
        low, high = bounds or (None, None)
        return Estimate(mean=center, low=low, high=high)
    stderr = math.sqrt(variance)
    reach = t_975(clusters - 1) * stderr
    least, most = (0.0, 1.0) if is_share else (-math.inf, math.inf)
    return Estimate(mean=center, stderr=stderr, low=max(least, center - reach), high=min(most, center + reach))


def clustered_mean(values: Floats, starts: Ints, *, is_share: bool = False) -> Estimate:
    """Return the mean of `values` with its standard error, clustered by task because repeats are not independent.

    `starts` contains the index of each task's first value; the values of a task must be adjacent. The variance follows
    Miller 2024 (arXiv:2411.00640, section 2.2) with the factor T / (T - 1) for T tasks, as for any sample variance. It
    is the variance of a ratio of sums, so tasks may have different numbers of repeats (Cameron & Miller 2015, J. Human
    Resources 50(2)).
    """
    center = mean(values)
    tasks = len(starts)
    off = np.add.reduceat(values - center, starts)
    variance = float(np.sum(off**2)) / len(values) ** 2 * tasks / (tasks - 1) if tasks > 1 else 0.0
    # Differences due to rounding alone do not count as variance.
    noise = (8 * np.finfo(float).eps * float(np.max(np.abs(values)))) ** 2
    return estimate(center, variance if variance > noise else 0.0, tasks, is_share=is_share)


def clustered_share(count: int, of: int, trials: int) -> Estimate:
    """Return the share `count` / `of` with Wilson's interval, or the exact bound for none and all, from `trials`."""
    return estimate(count / of, 0.0, trials, is_share=True)


@dataclass(frozen=True)
class Passes:
    """pass@k (`any`) and pass^k (`every`), averaged over the tasks that have at least k rollouts."""

    k: int
    tasks: int
    any: Estimate
    every: Estimate


def passes(measured: Ints, solved: Ints, most: int) -> list[Passes]:
    """Return unbiased pass@k and pass^k for k = 1..most, from the `measured` and `solved` rollouts of each task.

    With n measured and c solved rollouts, pass@k = 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374,
    equation 1) and pass^k = C(c, k) / C(n, k) (Yao et al. 2024, arXiv:2406.12045), computed as products over k.
    """
    pairs, weight = np.unique(np.stack([measured, solved], axis=1), axis=0, return_counts=True)
    n, c = pairs[:, 0].astype(float), pairs[:, 1].astype(float)
    none, every = np.ones(len(n)), np.ones(len(n))
    found: list[Passes] = []
    for k in range(1, most + 1):
        keep = n >= k
        n, c, weight, none, every = n[keep], c[keep], weight[keep], none[keep], every[keep]
        if not len(n):
            break
        none = none * np.maximum(n - c - k + 1, 0) / (n - k + 1)
        every = every * np.maximum(c - k + 1, 0) / (n - k + 1)
        found.append(Passes(k, int(weight.sum()), mean_over_tasks(1 - none, weight), mean_over_tasks(every, weight)))
    return found


def mean_over_tasks(shares: Floats, weight: Ints | None = None) -> Estimate:
    """Return the weighted mean of shares, where the i-th share represents `weight[i]` tasks (default: one)."""
    weight = np.ones(len(shares), np.int64) if weight is None else weight
    tasks = int(weight.sum())
    center = math.fsum(shares * weight) / tasks
    variance = math.fsum(weight * (shares - center) ** 2) / (tasks - 1) / tasks if tasks > 1 else 0.0
    # All shares are equal, so any remaining variance is rounding.
    return estimate(center, variance if len(np.unique(shares)) > 1 else 0.0, tasks, is_share=True)


def pearson(x: Floats, y: Floats) -> float | None:
    """Return Pearson's correlation coefficient; None if `x` or `y` is constant."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    off_x, off_y = x - mean(x), y - mean(y)
    shared = total(off_x * off_y) / math.sqrt(total(off_x**2) * total(off_y**2))
    return max(-1.0, min(1.0, shared))


def sign_test(up: int, down: int) -> float | None:
    """Return the two-sided p-value of a sign test with `up` positive and `down` negative changes.

    It is exact for up to 1,000 changes and uses the normal approximation for more. With one rollout per task and a
    binary outcome, this is McNemar's exact test.
    """
    changes, fewer = up + down, min(up, down)
    if not changes:
        return None
    if changes <= _EXACT_SIGN_TEST:
        tail = sum(math.comb(changes, count) for count in range(fewer + 1))
        return float(min(1.0, 2 * tail / 2**changes))
    return min(1.0, 2 * NormalDist().cdf((2 * fewer + 1 - changes) / math.sqrt(changes)))
