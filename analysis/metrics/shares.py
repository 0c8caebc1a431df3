"""Computes the figures of groups of rollouts, such as those with one finish reason, with their intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.estimate import Estimate, MeanSpread
from rollyard.analysis.metrics.estimators import clustered_mean, estimate
from rollyard.analysis.metrics.loader.columns import Columns, Floats, Ints
from rollyard.records.datasets.spread import spread
from rollyard.records.scores.confidence_intervals import share_bounds


def share_of_tasks(count: int, tasks: int) -> Estimate | None:
    """Return the share of tasks with a property: Wilson's interval, or the exact bound for none and all."""
    if not tasks:
        return None
    bounds = share_bounds(count / tasks, tasks)
    return Estimate(mean=count / tasks, low=bounds[0] if bounds else None, high=bounds[1] if bounds else None)


@dataclass(frozen=True)
class Groups:
    """The rollouts of a run, of which subsets are examined."""

    columns: Columns
    solved: NDArray[np.bool_] | None
    task: Ints
    """Position of each rollout's task among the tasks."""
    measured: Ints
    """Number of rollouts of each task."""

    @classmethod
    def of(cls, columns: Columns, solved: NDArray[np.bool_] | None, starts: Ints) -> Groups:
        """`starts`: the index of each task's first rollout."""
        measured = np.diff(starts, append=len(columns))
        return cls(columns, solved, np.repeat(np.arange(len(starts)), measured), measured)

    def share(self, rows: Ints) -> Estimate:
        """Return the share of the rollouts that these are. The variance is that of `clustered_mean`."""
        tasks, total = len(self.measured), len(self.task)
        mean = len(rows) / total
        off = np.bincount(self.task[rows], minlength=tasks) - mean * self.measured
        variance = float(np.sum(off**2)) / total**2 * tasks / (tasks - 1) if tasks > 1 else 0.0
        return estimate(mean, variance if variance > 1e-24 else 0.0, tasks, is_share=True)

    def reward(self, rows: Ints) -> Estimate:
        """Return the mean reward of these rollouts, which are in ascending order."""
        return clustered_mean(self.columns.reward[rows], self._starts(rows))

    def rate(self, rows: Ints) -> Estimate | None:
        """Return the share of these rollouts that solved their task."""
        if self.solved is None:
            return None
        return clustered_mean(self.solved[rows].astype(float), self._starts(rows), is_share=True)

    def spread(self, values: Floats) -> MeanSpread | None:
        """Return the distribution of a quantity with one value per rollout, NaN where there is none."""
        found = spread(values)
        if found is None:
            return None
        rows = np.flatnonzero(~np.isnan(values))
        return MeanSpread(**found.model_dump(), estimate=clustered_mean(values[rows], self._starts(rows)))

    def _starts(self, rows: Ints) -> Ints:
        return np.flatnonzero(np.diff(self.task[rows], prepend=-1))
