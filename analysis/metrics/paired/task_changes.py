"""TaskChanges: what a policy learned and forgot between two runs, task by task."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.analysis.metrics.paired.difference import Level
from rollyard.analysis.metrics.paired.metric import REWARD, SOLVE_RATE, Metric
from rollyard.analysis.metrics.paired.records import PairedDifference
from rollyard.analysis.metrics.paired.run_pair import PairedRuns, different_scales
from rollyard.analysis.metrics.paired.task_values import common
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.task_pairing import BY_CONTENT, Pairing, matched, pair, side_by
from rollyard.records.types import Record

LISTS = ("learned", "forgotten", "all")
_NOISE = 1e-12
_MAX_EXACT = 2000
"""Up to so many rollouts of a task, Fisher's test is computed."""


class TaskChange(Record):
    """A task in two runs."""

    task: int
    """Index in the first run."""
    task_in_second: int
    first: float
    """Solve rate, or mean reward if "solved" is undefined."""
    second: float
    rollouts: tuple[int, int]
    p: float | None
    """Two-sided p-value of Fisher's exact test for this task alone; None if it has one rollout per run, or if "solved"
    is undefined."""


@dataclass(frozen=True)
class TaskChanges:
    """The tasks that two runs have in common. All arrays have the same length."""

    why_not: str
    """Why there are none; empty if there are some."""
    by: str = ""
    metric: str = ""
    """SOLVE_RATE or REWARD."""
    difference: PairedDifference | None = None
    only: tuple[int, int] = (0, 0)
    """Number of tasks in one run only."""
    task: tuple[Ints, Ints] = (np.empty(0, np.int64), np.empty(0, np.int64))
    values: tuple[Floats, Floats] = (np.empty(0), np.empty(0))
    measured: tuple[Ints, Ints] = (np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of(cls, first: Run, second: Run) -> TaskChanges:
        """Pair the tasks by content if all rows have `_ng_task_key`, and compare them as ng_compare does."""
        pairing = _pairing(first, second)
        if pairing.sides is None or pairing.why_not:
            return cls(pairing.why_not)
        paired = PairedRuns(*common(pairing, (first, second)))
        metric = Metric(SOLVE_RATE if first.solved is not None and second.solved is not None else REWARD)
        if metric.name == REWARD and different_scales(first, second):
            return cls("their datasets have different reward scales, and it is undefined what counts as solved")
        rollouts = paired.rollouts(metric)
        return cls(
            why_not="",
            by=pairing.by,
            metric=metric.name,
            difference=paired.compare(metric, Level()),
            only=(len(pairing.sides[0].key) - len(pairing.here), len(pairing.sides[1].key) - len(pairing.here)),
            task=(paired.baseline.first, paired.candidate.first),
            values=(paired.baseline.values(metric, rollouts[0]), paired.candidate.values(metric, rollouts[1])),
            measured=(paired.baseline.counts, paired.candidate.counts),
        )

    def transitions(self) -> list[list[int]]:
        """Return the number of tasks by how many of their rollouts are solved: none, some, all. A row per state in the
        first run, a column per state in the second. Empty if "solved" is undefined.
        """
        if self.metric != SOLVE_RATE:
            return []
        states = [np.where(rate <= 0, 0, np.where(rate >= 1, 2, 1)) for rate in self.values]
        counts = np.bincount(3 * states[0] + states[1], minlength=9)
        return [[int(counts[3 * before + after]) for after in range(3)] for before in range(3)]

    def listed(self, name: str) -> Ints:
        """Return the indexes of the tasks in a list, one of LISTS, largest change first."""
        change = self.values[1] - self.values[0]
        size = np.abs(change)
        order = np.lexsort((self.task[0], -np.minimum(*self.measured), -size))
        if name == "all":
            return order
        sign = 1.0 if name == "learned" else -1.0
        return order[sign * change[order] > _NOISE]

    def at(self, index: int) -> TaskChange:
        """Return the record of one task."""
        counts = int(self.measured[0][index]), int(self.measured[1][index])
        rates = float(self.values[0][index]), float(self.values[1][index])
        p = None
        if self.metric == SOLVE_RATE and min(counts) > 1 and sum(counts) <= _MAX_EXACT:
            p = fisher_exact(round(rates[0] * counts[0]), counts[0], round(rates[1] * counts[1]), counts[1])
        return TaskChange(
            task=int(self.task[0][index]),
            task_in_second=int(self.task[1][index]),
            first=rates[0],
            second=rates[1],
            rollouts=counts,
            p=p,
        )


def fisher_exact(solved_a: int, of_a: int, solved_b: int, of_b: int) -> float:
    """Return the two-sided p-value of Fisher's exact test: the probability, given the total number of solved rollouts,
    of a table that is at most as probable as this one.
    """
    solved, total = solved_a + solved_b, of_a + of_b
    ways = [
        math.comb(of_a, count) * math.comb(of_b, solved - count)
        for count in range(max(0, solved - of_b), min(of_a, solved) + 1)
    ]
    own = math.comb(of_a, solved_a) * math.comb(of_b, solved_b)
    return float(sum(way for way in ways if way <= own) / math.comb(total, solved))


def _pairing(first: Run, second: Run) -> Pairing:
    """Pair by content where the rows have it: two files of a series may have the same index for different tasks."""
    sides = side_by(BY_CONTENT, first), side_by(BY_CONTENT, second)
    if sides[0] is not None and sides[1] is not None:
        return matched(BY_CONTENT, sides[0], sides[1])
    return pair(first, second)
