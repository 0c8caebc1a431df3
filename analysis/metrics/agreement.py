"""Agreement of two raters about the same rollouts: the confusion table, and Cohen's kappa with its interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.estimators import clustered_mean, estimate
from rollyard.analysis.metrics.loader.columns import Ints
from rollyard.records.types import Record

_NOISE = 1e-24
"""Variances up to this come from rounding."""


class Agreement(Record):
    """How two raters classified the same rollouts."""

    counts: tuple[tuple[int, ...], ...]
    """Number of rollouts by the first rater's category (rows) and the second's (columns)."""
    n: int
    tasks: int
    agreed: Estimate
    """Share of rollouts in the same category for both, with an interval that is clustered by task."""
    kappa: Estimate | None
    """Cohen's kappa; None if both raters used a single category and the same one, so that chance explains everything.
    Without an interval if it has no variance, as when the raters agree about every rollout or one of them uses a single
    category, or if there is only one task."""


def agreement(first: Sequence[int] | Ints, second: Sequence[int] | Ints, tasks: Ints, categories: int = 2) -> Agreement:
    """Return the agreement of two raters, each with a category (0, 1, ...) for every rollout. `tasks`: the rollouts'.

    There must be at least one rollout. kappa = (po - pe) / (1 - pe) with the observed agreement po and the agreement pe
    that is expected if the raters are independent (Cohen 1960, Educational and Psychological Measurement 20(1)). Its
    variance is that of the delta method, as in Fleiss, Cohen & Everitt 1969 (Psychological Bulletin 72(5)), with the
    rollouts' contributions summed by task, because repeats of a task are not independent (Cameron & Miller 2015,
    J. Human Resources 50(2)). With one rollout per task, it is their formula times T / (T - 1) for T tasks.
    """
    order = np.argsort(tasks, kind="stable")
    one, two, sorted_tasks = np.asarray(first)[order], np.asarray(second)[order], np.asarray(tasks)[order]
    starts = np.flatnonzero(np.diff(sorted_tasks, prepend=sorted_tasks[0] - 1))
    counts = np.zeros((categories, categories), np.int64)
    np.add.at(counts, (one, two), 1)
    return Agreement(
        counts=tuple(tuple(row) for row in counts.tolist()),
        n=len(one),
        tasks=len(starts),
        agreed=clustered_mean((one == two).astype(float), starts, is_share=True),
        kappa=_kappa(one, two, counts / len(one), starts),
    )


def _kappa(one: Ints, two: Ints, shares: np.ndarray, starts: Ints) -> Estimate | None:
    rows, columns = shares.sum(axis=1), shares.sum(axis=0)
    observed, chance = float(np.trace(shares)), float(rows @ columns)
    if chance >= 1:
        return None
    kappa = (observed - chance) / (1 - chance)
    same = ((one == two) - observed) / (1 - chance)
    by_chance = (columns[one] + rows[two] - 2 * chance) * (1 - observed) / (1 - chance) ** 2
    clusters = len(starts)
    sums = np.add.reduceat(same - by_chance, starts)
    variance = float(np.sum(sums**2)) / len(one) ** 2 * clusters / (clusters - 1) if clusters > 1 else 0.0
    # Perfect agreement has no variance apart from rounding; nor has a rater who uses one category, whose kappa is 0.
    found = estimate(kappa, variance if observed < 1 and variance > _NOISE else 0.0, clusters)
    if found.low is None or found.high is None:
        return found
    return found.model_copy(update={"low": max(-1.0, found.low), "high": min(1.0, found.high)})
