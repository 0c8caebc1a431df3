"""Counts the rollouts that are missing in two runs, and fills them in for and against the candidate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.analysis.metrics.paired.metric import Metric
from rollyard.analysis.metrics.paired.run_pair import PairedRuns
from rollyard.analysis.metrics.paired.task_values import Filling, GroupedRun
from rollyard.analysis.metrics.solved import Flags


@dataclass(frozen=True)
class Expected:
    """The rollouts that a run should contain."""

    repeats: Ints
    """For each task."""
    unseen: int
    """Number of tasks without a rollout in either run."""
    unseen_repeats: int
    """Number of expected rollouts of each of them."""

    @property
    def rollouts(self) -> int:
        return int(self.repeats.sum()) + self.unseen * self.unseen_repeats


def expected(paired: PairedRuns) -> tuple[Expected, Expected]:
    """Return the expected rollouts of both runs: the number of repeats of each task, from the manifest or, without one,
    the largest number that a task has.
    """
    sides = paired.baseline, paired.candidate
    multiplicity = np.maximum.reduce([np.ones(sides[0].tasks, np.int64), *(one.multiplicity for one in sides)])
    repeats = [_repeats(one) for one in sides]
    unseen = 0
    if paired.all_tasks:
        for one, count in zip(sides, repeats, strict=True):
            absent = int(np.maximum(count * multiplicity - one.counts, 0).sum())
            unseen = max(unseen, -(-((one.run.profile.coverage.missing or 0) - absent) // count))
    return Expected(repeats[0] * multiplicity, unseen, repeats[0]), Expected(
        repeats[1] * multiplicity, unseen, repeats[1]
    )


def _repeats(grouped: GroupedRun) -> int:
    """Return the number of rollouts that each task should have."""
    repeats = grouped.run.profile.coverage.repeats
    if repeats is None:
        most = int(grouped.run.by_task.measured.max()) if grouped.run.by_task is not None else 1
        # Rows without a reward are rollouts that should have one.
        repeats = max(most, 1 + int(grouped.run.columns.unmeasured.repeat.max(initial=0)))
    return repeats


def missing(grouped: GroupedRun, rollouts: Floats, found: Expected, chosen: Flags) -> int:
    """Return the number of expected rollouts of the chosen tasks that have no value of the metric."""
    return (
        int(np.maximum(found.repeats - grouped.known(rollouts), 0)[chosen].sum()) + found.unseen * found.unseen_repeats
    )


def filled(
    paired: PairedRuns, metric: Metric, wanted: tuple[Expected, Expected], chosen: Flags, fills: tuple[float, float]
) -> tuple[Floats, Floats]:
    """Return the metric of the chosen tasks in both runs. A missing rollout counts as its run's value in `fills`."""
    values = []
    for one, rollouts, own, fill in zip(
        (paired.baseline, paired.candidate), paired.rollouts(metric), wanted, fills, strict=True
    ):
        measured = one.values(metric, rollouts, Filling(own.repeats, fill))[chosen]
        values.append(np.concatenate([measured, np.full(own.unseen, fill)]))
    return values[0], values[1]


def unmeasured_tasks(grouped: GroupedRun) -> int:
    """Return the number of tasks whose rows in the file all lack a reward."""
    columns = grouped.run.columns
    return len(np.setdiff1d(columns.unmeasured.task, columns.task))
