"""The metrics of tasks and their repeats, such as pass@k and cons@k, and the figures of groups of rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics import estimators
from rollyard.analysis.metrics.columns import NO_ANSWER_FIELD, Columns, Floats, Ints
from rollyard.analysis.metrics.estimators import Estimate, MeanSpread, Passes, clustered_mean, clustered_share
from rollyard.analysis.metrics.profile_records import Coverage, PassAtK, SolveBin, Tasks, ZeroVariance
from rollyard.analysis.metrics.solved import Flags, parts_of
from rollyard.records.scores import spread

MOST_ROLLOUTS = 1000
"""cons@k is undefined for tasks with more rollouts, because C(n, k) exceeds the range of a double."""
MOST_K = 128
"""Largest k."""
_CELLS = 1 << 21
"""Size of the largest temporary array."""


@dataclass(frozen=True)
class Votes:
    """cons@k of the tasks that have the same number of rollouts."""

    rollouts: int
    tasks: Ints
    """Indexes of the tasks."""
    shares: Floats
    """One row per task. Column k - 1 contains cons@k."""


def answers_of(columns: Columns) -> Ints | None:
    """Return the answer of each rollout as an integer; None if a dataset's rows have no `extracted_answer`.

    If only some rows of a dataset have none, these count as rollouts without an answer.
    """
    if not len(columns):
        return None
    for _, mask in parts_of(columns):
        if (columns.answer[mask] == NO_ANSWER_FIELD).all():
            return None
    return columns.answer


def votes(answers: Ints | None, solved: Flags | None, starts: Ints, measured: Ints) -> list[Votes] | None:
    """Return cons@k of every task, in groups of equal numbers of rollouts; None if it is undefined.

    The rollouts of a task must be adjacent and in order, beginning at `starts`.
    """
    if answers is None or solved is None or measured.max() > MOST_ROLLOUTS:
        return None
    found = []
    for count in np.unique(measured).tolist():
        tasks = np.flatnonzero(measured == count)
        shares = np.empty((len(tasks), min(count, MOST_K)))
        size = max(1, _CELLS // count**2)
        for begin in range(0, len(tasks), size):
            rows = starts[tasks[begin : begin + size], None] + np.arange(count)
            shares[begin : begin + size] = _shares(answers[rows], solved[rows])
        found.append(Votes(count, tasks, shares))
    return found


def at(found: list[Votes], k: int) -> Floats:
    """Return cons@k of the tasks with at least k rollouts, in no particular order."""
    return np.concatenate([one.shares[:, k - 1] for one in found if one.rollouts >= k])


def _shares(answers: Ints, solved: NDArray[np.bool_]) -> Floats:
    """Return cons@k for tasks with the same number of rollouts. The arguments have one row per task."""
    tasks, count = answers.shape
    most = min(count, MOST_K)
    # Answers are numbered by the position of their first rollout.
    number = (answers[:, :, None] == answers[:, None, :]).argmax(axis=2)
    chosen = np.zeros((tasks, count, count), np.int64)
    np.put_along_axis(chosen, number[:, :, None], 1, axis=2)
    totals = chosen.sum(axis=1)
    after = totals[:, None, :] - chosen.cumsum(axis=1)
    task, position = np.nonzero(np.take_along_axis(solved, number, axis=1))
    own = number[task, position]
    lines = np.arange(len(task))
    own_after = after[task, position, own]
    sizes, tails = totals[task], after[task, position]
    sizes[lines, own] = 0
    order = np.argsort(-sizes, axis=1, kind="stable")
    ways = _ways(own_after, np.take_along_axis(sizes, order, axis=1), np.take_along_axis(tails, order, axis=1), most)
    sums = np.zeros((tasks, most))
    np.add.at(sums, task, ways)
    # Rounded, because sums beyond 2^53 are inexact and tasks with the same votes must have the same share.
    return np.round(sums / _binomials(count, most)[count, 1:], 12)


def _ways(own_after: Ints, sizes: Ints, tails: Ints, most: int) -> Floats:
    """Count the winning subsets of each size 1..most whose first rollout with the winning answer is given.

    `own_after` is the number of later rollouts with that answer; `sizes` contains the numbers of rollouts of the other
    answers, largest first, and `tails` how many of them come later.
    """
    choose = _binomials(sizes.shape[1], most)
    ways = np.zeros((len(own_after), most))
    for m in range(1, min(most, int(own_after.max(initial=-1)) + 1) + 1):
        (lines,) = np.nonzero(own_after >= m - 1)
        size, tail = sizes[lines], tails[lines]
        degree = most - m
        product = choose[np.where(size < m, size, 0).sum(axis=1), : degree + 1]
        for rank in range(int((size >= m).sum(axis=1).max(initial=0))):
            (rest,) = np.nonzero(size[:, rank] >= m)
            factors = choose[size[rest, rank], : m + 1].copy()
            factors[:, m:] = choose[tail[rest, rank], m : m + 1]
            product[rest] = _times(product[rest], factors)
        ways[lines, m - 1 :] += choose[own_after[lines], m - 1, None] * product
    return ways


def _times(polynomials: Floats, factors: Floats) -> Floats:
    """Multiply polynomials, one per row, and drop the powers above those of the first."""
    length = polynomials.shape[1]
    product = polynomials * factors[:, :1]
    for power in range(1, min(factors.shape[1], length)):
        product[:, power:] += polynomials[:, : length - power] * factors[:, power, None]
    return product


@cache
def _binomials(count: int, most: int) -> Floats:
    """Return C(n, k) for n up to `count` and k up to `most`."""
    return np.array([[float(comb(n, k)) for k in range(most + 1)] for n in range(count + 1)])


def share_of_tasks(count: int, tasks: int) -> Estimate | None:
    """Return the share of tasks with a property; None if there are none."""
    return clustered_share(count, tasks, tasks) if tasks else None


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
        return estimators.estimate(mean, variance if variance > 1e-24 else 0.0, tasks, is_share=True)

    def reward(self, rows: Ints) -> Estimate:
        """Return the mean reward of these rollouts, which are in ascending order."""
        return clustered_mean(self.columns.reward[rows], self._starts(rows))

    def rate(self, rows: Ints) -> Estimate | None:
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


_FIRST = 20
_FEW_REPEATS = 32
"""If all tasks have the same number of repeats, up to this many, solve rates are shown as counts: `3 of 16`."""


@dataclass(frozen=True)
class PerTask:
    """Metrics of each task, as arrays in the order of the task index. Must be built from sorted columns."""

    task: Ints
    starts: Ints
    """Index of each task's first rollout in the columns."""
    measured: Ints
    solved: Ints | None
    mean: Floats
    std: Floats
    """Sample standard deviation (n - 1 degrees of freedom); 0 for a single rollout."""
    min: Floats
    max: Floats
    votes: list[Votes] | None
    """cons@k of each task; None if the environment does not record answers."""

    @classmethod
    def of(cls, columns: Columns, solved: NDArray[np.bool_] | None) -> PerTask:
        """Group the measured rollouts by task. There must be at least one rollout."""
        starts = np.flatnonzero(np.diff(columns.task, prepend=-1))
        measured = np.diff(starts, append=len(columns))
        mean = np.add.reduceat(columns.reward, starts) / measured
        lowest = np.minimum.reduceat(columns.reward, starts)
        highest = np.maximum.reduceat(columns.reward, starts)
        squares = np.add.reduceat((columns.reward - np.repeat(mean, measured)) ** 2, starts)
        return cls(
            task=columns.task[starts],
            starts=starts,
            measured=measured,
            solved=None if solved is None else np.add.reduceat(solved.astype(np.int64), starts),
            mean=np.where(lowest == highest, lowest, mean),
            std=np.where(lowest == highest, 0.0, np.sqrt(squares / np.maximum(measured - 1, 1))),
            min=lowest,
            max=highest,
            votes=votes(answers_of(columns), solved, starts, measured),
        )

    def __len__(self) -> int:
        return len(self.task)

    @property
    def solve_rate(self) -> Floats | None:
        return None if self.solved is None else self.solved / self.measured


def tasks(grouped: PerTask, coverage: Coverage) -> Tasks:
    solved, measured = grouped.solved, grouped.measured
    never = None if solved is None else grouped.task[solved == 0]
    return Tasks(
        tasks=len(grouped),
        fewest_repeats=int(measured.min()),
        most_repeats=int(measured.max()),
        never_solved=None if never is None else len(never),
        always_solved=None if solved is None else int((solved == measured).sum()),
        never_solved_first=[] if never is None else [int(task) for task in never[:_FIRST]],
        solve_rates=[] if solved is None else _solve_rates(measured, solved),
        pass_at=pass_at(grouped, coverage),
        zero_variance=_zero_variance(grouped),
    )


def _solve_rates(measured: Ints, solved: Ints) -> list[SolveBin]:
    """Count tasks by solve rate. If all tasks have the same small number of repeats, there is one bin per number of
    solved repeats. Otherwise, there is one bin per tenth, plus separate bins for `none` and `all`.
    """
    if measured.min() == measured.max() <= _FEW_REPEATS:
        of = int(measured[0])
        bins = [(f"{count} of {of}", count / of, count / of, solved == count) for count in range(of + 1)]
    else:
        # Integer arithmetic: 3 of 10 belongs to the tenth that begins at 30%, regardless of how 0.3 * 10 rounds.
        tenth = np.where(solved > 0, 10 * solved // measured, -1)
        bins = [("none", 0.0, 0.0, solved == 0)]
        for begin in range(10):
            label = f"{10 * begin or 'over 0'}–{10 * begin + 10}%"
            bins.append((label, begin / 10, (begin + 1) / 10, tenth == begin))
        bins.append(("all", 1.0, 1.0, solved == measured))
    return [
        SolveBin(label=label, low=low, high=high, tasks=count, share=share_of_tasks(count, len(measured)))
        for label, low, high, inside in bins
        for count in (int(inside.sum()),)
    ]


def pass_at(grouped: PerTask, coverage: Coverage | None = None) -> list[PassAtK]:
    """Return pass@k, pass^k and cons@k for every k; empty if "solved" is undefined. With `coverage`, also count missing
    rollouts as failed.
    """
    measured, solved = grouped.measured, grouped.solved
    if solved is None:
        return []
    found = estimators.passes(measured, solved, int(measured.max()))
    failed: dict[int, Passes] = {}
    repeats, expected = (coverage.repeats, coverage.tasks_expected) if coverage and coverage.missing else (None, None)
    if repeats and expected is not None and expected >= len(solved) and measured.max() <= repeats:
        every = np.concatenate([solved, np.zeros(expected - len(solved), np.int64)])
        failed = {one.k: one for one in estimators.passes(np.full(expected, repeats), every, repeats)}
    return [
        PassAtK(
            k=one.k,
            tasks=one.tasks,
            tasks_measured=len(measured),
            any=one.any,
            every=one.every,
            consensus=None
            if grouped.votes is None or one.k > MOST_K
            else estimators.mean_over_tasks(at(grouped.votes, one.k)),
            any_missing_failed=failed[one.k].any.mean if one.k in failed else None,
            every_missing_failed=failed[one.k].every.mean if one.k in failed else None,
        )
        for one in found
    ]


def _zero_variance(grouped: PerTask) -> ZeroVariance:
    repeated = grouped.measured > 1
    flat, solved = repeated & (grouped.min == grouped.max), grouped.solved
    return ZeroVariance(
        tasks=int(flat.sum()),
        of=int(repeated.sum()),
        all_solved=None if solved is None else int((flat & (solved == grouped.measured)).sum()),
        none_solved=None if solved is None else int((flat & (solved == 0)).sum()),
        share=share_of_tasks(int(flat.sum()), int(repeated.sum())),
    )
