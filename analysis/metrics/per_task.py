"""Groups rollouts by task and computes the metrics of repeats, such as pass@k."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.consensus import MOST_K, Votes, answers_of, at, votes
from rollyard.analysis.metrics.estimators import Passes, mean_over_tasks, passes
from rollyard.analysis.metrics.loader.columns import Columns, Floats, Ints
from rollyard.analysis.metrics.profile_records import Coverage, PassAtK, SolveBin, Tasks, ZeroVariance
from rollyard.analysis.metrics.shares import share_of_tasks

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
        """The share of measured rollouts that solved the task."""
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
        counts = np.bincount(solved, minlength=of + 1)
        return [
            _bin(f"{count} of {of}", count / of, count / of, int(tasks), len(measured))
            for count, tasks in enumerate(counts)
        ]
    # Integer arithmetic: 3 of 10 belongs to the tenth that begins at 30%, regardless of how 0.3 * 10 rounds.
    tenth = 10 * solved // measured
    bins = [_bin("none", 0.0, 0.0, int((solved == 0).sum()), len(measured))]
    for begin in range(10):
        label = f"{'over 0' if begin == 0 else 10 * begin}–{10 * begin + 10}%"
        count = int(((tenth == begin) & (solved > 0)).sum())
        bins.append(_bin(label, begin / 10, (begin + 1) / 10, count, len(measured)))
    return [*bins, _bin("all", 1.0, 1.0, int((solved == measured).sum()), len(measured))]


def _bin(label: str, low: float, high: float, tasks: int, of: int) -> SolveBin:
    return SolveBin(label=label, low=low, high=high, tasks=tasks, share=share_of_tasks(tasks, of))


def pass_at(grouped: PerTask, coverage: Coverage | None = None) -> list[PassAtK]:
    """Return pass@k, pass^k and cons@k for every k; empty if "solved" is undefined. With `coverage`, also count missing
    rollouts as failed.
    """
    measured, solved = grouped.measured, grouped.solved
    if solved is None:
        return []
    found = passes(measured, solved, int(measured.max()))
    failed: dict[int, Passes] = {}
    repeats, expected = (coverage.repeats, coverage.tasks_expected) if coverage else (None, None)
    if (
        coverage
        and coverage.missing
        and repeats
        and expected is not None
        and expected >= len(solved)
        and measured.max() <= repeats
    ):
        every = np.concatenate([solved, np.zeros(expected - len(solved), np.int64)])
        failed = {one.k: one for one in passes(np.full(expected, repeats), every, repeats)}
    return [
        PassAtK(
            k=one.k,
            tasks=one.tasks,
            tasks_measured=len(measured),
            any=one.any,
            every=one.every,
            consensus=None if grouped.votes is None or one.k > MOST_K else mean_over_tasks(at(grouped.votes, one.k)),
            any_missing_failed=failed[one.k].any.mean if one.k in failed else None,
            every_missing_failed=failed[one.k].every.mean if one.k in failed else None,
        )
        for one in found
    ]


def _zero_variance(grouped: PerTask) -> ZeroVariance:
    repeated = grouped.measured > 1
    flat = repeated & (grouped.min == grouped.max)
    solved = grouped.solved
    return ZeroVariance(
        tasks=int(flat.sum()),
        of=int(repeated.sum()),
        all_solved=None if solved is None else int((flat & (solved == grouped.measured)).sum()),
        none_solved=None if solved is None else int((flat & (solved == 0)).sum()),
        share=share_of_tasks(int(flat.sum()), int(repeated.sum())),
    )
