"""Computes running means of rewards and successes, and their standard errors. Keeps only a few numbers per task in
memory.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rollyard.records.scores.confidence_intervals import share_bounds, t_975

_MAX_AGENTS = 8


@dataclass(frozen=True, slots=True)
class ClusteredMean:
    """A mean over rollouts, with its standard error clustered by task."""

    value: float
    stderr: float | None
    """None for a single task, or if all tasks have the same value."""
    rollouts: int
    tasks: int

    @property
    def share_interval(self) -> tuple[float, float] | None:
        """The 95% interval of a share. If there is no standard error, it is derived from the number of tasks
        (`share_bounds`).
        """
        if self.stderr is None:
            return share_bounds(self.value, self.tasks)
        reach = t_975(self.tasks - 1) * self.stderr
        return max(0.0, self.value - reach), min(1.0, self.value + reach)


class Scores:
    """Accumulates the rewards and successes of one dataset. Takes about 130 bytes per task."""

    def __init__(self) -> None:
        self.rollouts = 0
        self.reported = 0
        """Number of rollouts that report success or failure."""
        self.solved = 0
        self.low = math.inf
        self.high = -math.inf
        self.unlike_success = 0
        """Number of rollouts that report success with a reward other than 1, or failure with a reward of 1."""
        self.agents: set[str] = set()
        self._indexes: dict[int, int] = {}
        """Maps each task to its index in the arrays."""
        self.counts, self.reward_sums, self.solved_counts = array("q"), array("d"), array("q")
        """Arrays with one entry per task."""

    def add(self, task: int | None, reward: float, success: bool | None = None, agent: str = "") -> None:
        """Count a rollout. If `task` is None, the rollout counts as a separate task."""
        index = self._index_of(task)
        self.rollouts += 1
        self.counts[index] += 1
        self.reward_sums[index] += reward
        self.low, self.high = min(self.low, reward), max(self.high, reward)
        if success is not None:
            self.reported += 1
            self.solved += success
            self.solved_counts[index] += success
            self.unlike_success += success != (reward == 1)
        if len(self.agents) < _MAX_AGENTS:
            self.agents.add(agent)

    @property
    def tasks(self) -> int:
        """Number of tasks with at least one rollout."""
        return len(self.counts)

    def _index_of(self, task: int | None) -> int:
        new = len(self.counts)
        index = new if task is None else self._indexes.setdefault(task, new)
        if index == new:
            self.counts.append(0)
            self.reward_sums.append(0.0)
            self.solved_counts.append(0)
        return index


def mean_reward(parts: Iterable[Scores]) -> ClusteredMean | None:
    """Return the mean reward over all rollouts in `parts`; None if there are none."""
    nonempty = [part for part in parts if part.rollouts]
    if not nonempty:
        return None
    size = max(max(abs(part.low), abs(part.high)) for part in nonempty)
    constant = min(part.low for part in nonempty) == max(part.high for part in nonempty)
    return _clustered(
        [(part.reward_sums, part.counts) for part in nonempty], size, nonempty[0].low if constant else None
    )


def success_rate(parts: Iterable[Scores]) -> ClusteredMean | None:
    """Return the success rate over all rollouts in `parts`; None if there are none or a part never reports success."""
    nonempty = [part for part in parts if part.rollouts]
    if not nonempty or not all(part.reported for part in nonempty):
        return None
    solved, rollouts = sum(part.solved for part in nonempty), sum(part.rollouts for part in nonempty)
    constant = solved / rollouts if solved in (0, rollouts) else None
    return _clustered([(part.solved_counts, part.counts) for part in nonempty], 1.0, constant)


def _clustered(
    parts: Sequence[tuple[Sequence[float], Sequence[int]]], size: float, constant: float | None
) -> ClusteredMean:
    """Return the mean over all rollouts with its standard error. Each part contains the sum and the number of rollouts
    of every task.

    `size` is the largest absolute value. `constant` is the common value if all values are equal, else None.

    For T tasks, where S is the sum and m the number of a task's rollouts, the mean is the ratio R = sum S / sum m, and
    its variance is T / (T - 1) * sum (S - m R)^2 / (sum m)^2. This is the cluster-robust variance of a mean (Miller
    2024, arXiv:2411.00640, section 2.2; Cameron & Miller 2015, Journal of Human Resources 50(2), section II). It is
    valid for unequal numbers of repeats, which are normal while a collection runs.
    """
    tasks, rollouts = sum(len(counts) for _, counts in parts), sum(sum(counts) for _, counts in parts)
    if constant is not None:
        return ClusteredMean(constant, None, rollouts, tasks)
    mean = math.fsum(math.fsum(sums) for sums, _ in parts) / rollouts
    if tasks < 2:
        return ClusteredMean(mean, None, rollouts, tasks)
    deviation = sum(
        (own - count * mean) ** 2 for sums, counts in parts for own, count in zip(sums, counts, strict=True)
    )
    error = math.sqrt(deviation * tasks / (tasks - 1)) / rollouts
    # Differences due to rounding alone do not count.
    noise = 8 * sys.float_info.epsilon * size * max(1.0, rollouts / tasks)
    return ClusteredMean(mean, error if error > noise / math.sqrt(tasks) else None, rollouts, tasks)
