"""Assigns the rollouts of two runs to common tasks, and computes metrics of these tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollyard.analysis.metrics.consensus import answers_of, votes
from rollyard.analysis.metrics.curriculum import pass_at
from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.analysis.metrics.paired.metric import Metric
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.task_pairing import Pairing, Side


@dataclass(frozen=True)
class Filling:
    """How missing rollouts are counted: each of `repeats` rollouts that a task lacks gets the value `value`."""

    repeats: Ints
    """For each task."""
    value: float


@dataclass(frozen=True)
class GroupedRun:
    """A run whose rollouts are assigned to tasks, which are numbered from 0 in both runs."""

    run: Run
    tasks: int
    group: Ints
    """The task of each measured rollout; -1 if it is not compared."""
    first: Ints
    """The index that each task has in this run; -1 if the run has no rollout of it."""
    multiplicity: Ints
    """How many tasks of the run are the same as each task; 0 if the run has no rollout of it."""

    @property
    def counts(self) -> Ints:
        """Number of measured rollouts of each task."""
        return np.bincount(self.group[self.group >= 0], minlength=self.tasks)

    def known(self, rollouts: Floats) -> Ints:
        """Return the number of rollouts with a value of each task."""
        return np.bincount(self.group[(self.group >= 0) & ~np.isnan(rollouts)], minlength=self.tasks)

    def values(self, metric: Metric, rollouts: Floats, filling: Filling | None = None) -> Floats:
        """Return the metric of each task, NaN if it is undefined: for a task without values or, for pass@k and cons@k,
        with fewer than k rollouts. `rollouts` has the metric of each rollout (`metric.of_rollouts`).
        """
        known = (self.group >= 0) & ~np.isnan(rollouts)
        counts = np.bincount(self.group[known], minlength=self.tasks)
        sums: Floats = np.bincount(self.group[known], rollouts[known], minlength=self.tasks).astype(np.float64)
        if filling is not None:
            absent = np.maximum(filling.repeats - counts, 0)
            counts, sums = counts + absent, sums + absent * filling.value
        found = np.full(self.tasks, np.nan)
        if metric.k is None:
            found[counts > 0] = sums[counts > 0] / counts[counts > 0]
            return found
        enough = counts >= metric.k
        if metric.votes:
            found[enough] = self._votes(metric.k)[enough]
        elif enough.any():
            found[enough] = pass_at(metric.k, counts[enough], np.round(sums[enough]).astype(np.int64))
        return found

    def _votes(self, k: int) -> Floats:
        columns, found = self.run.columns, np.full(self.tasks, np.nan)
        order = np.lexsort((columns.repeat, columns.task, self.group))
        order = order[self.group[order] >= 0]
        group, answers = self.group[order], answers_of(columns)
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        if answers is None or self.run.solved is None or not len(order):
            return found
        measured = np.diff(starts, append=len(group))
        for one in votes(answers[order], self.run.solved[order], starts, measured) or []:
            if one.rollouts >= k:
                found[group[starts[one.tasks]]] = one.shares[:, k - 1]
        return found


def common(pairing: Pairing, runs: tuple[Run, Run], *, all_tasks: bool = False) -> tuple[GroupedRun, GroupedRun]:
    """Number the tasks of both runs, or with `all_tasks` those of either run, in the order of the baseline."""
    assert pairing.sides is not None
    first, second = pairing.sides
    keys = (np.union1d if all_tasks else np.intersect1d)(first.key, second.key)
    place = [_places(keys, side) for side in (first, second)]
    # The order of the baseline's indexes; tasks that only the second run has come last.
    rank = np.lexsort((place[1], np.where(place[0] < 0, np.iinfo(np.int64).max, place[0])))
    number = np.empty(len(keys), np.int64)
    number[rank] = np.arange(len(keys))
    grouped = [
        _grouped(run, side, keys, number, first_index[rank])
        for run, side, first_index in zip(runs, pairing.sides, place, strict=True)
    ]
    return grouped[0], grouped[1]


def _places(keys: Ints, side: Side) -> Ints:
    """Return the index of each key's task in the run; -1 if it has none."""
    found = np.full(len(keys), -1, np.int64)
    at = np.searchsorted(side.key, keys)
    inside = at < len(side.key)
    inside[inside] = side.key[at[inside]] == keys[inside]
    found[inside] = side.task[at[inside]]
    return found


def _grouped(run: Run, side: Side, keys: Ints, number: Ints, first: Ints) -> GroupedRun:
    at = np.searchsorted(keys, side.key)
    kept = at < len(keys)
    kept[kept] = keys[at[kept]] == side.key[kept]
    of_key = np.full(len(side.key), -1, np.int64)
    of_key[kept] = number[at[kept]]
    assert run.by_task is not None
    number_of_task = of_key[side.index]
    multiplicity = np.bincount(number_of_task[number_of_task >= 0], minlength=len(keys))
    group = np.repeat(number_of_task, run.by_task.measured)
    return GroupedRun(run, len(keys), group, first, multiplicity)
