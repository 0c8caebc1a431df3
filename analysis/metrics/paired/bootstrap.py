"""The paired cluster bootstrap: resamples tasks, each with all its rollouts in both runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rollyard.analysis.metrics.estimators import mean
from rollyard.analysis.metrics.loader.columns import Floats

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
