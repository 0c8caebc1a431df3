"""Tracks the scores of a run while rollouts arrive, overall and by dataset."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from rollyard.records.rollout_types import RolloutRow
from rollyard.records.types import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Computes 95% confidence intervals of means over tasks in plain Python, so the collector does not need numpy.

_T_975 = (
    *(12.7062047362, 4.3026527297, 3.1824463053, 2.7764451052, 2.5705818356),
    *(2.4469118511, 2.3646242516, 2.3060041352, 2.2621571629, 2.2281388520),
)
_Z = NormalDist().inv_cdf(0.975)


def t_975(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t distribution, accurate to 1e-5.

    Uses a table for up to 10 degrees of freedom, and the expansion around the normal quantile for more (Abramowitz &
    Stegun 1964, 26.7.5).
    """
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def share_bounds(share: float, tasks: int, alpha: float = 0.05) -> tuple[float, float] | None:
    """Return the interval for a share if all tasks have the same value, so no standard error can be estimated.

    Its level is 1 - `alpha`. For a share of 0 or 1, it is the exact one-sided bound, 1 - alpha^(1/tasks), which at 95%
    is about 3 / tasks (the rule of three: Hanley & Lippman-Hand 1983, JAMA 249(13)). The bound holds regardless of how
    the repeats of a task are correlated, because a value in 0..1 with mean m is 0 with a probability of at most 1 - m.
    For any other share, it is Wilson's score interval (1927) with each task as one trial, or None for a single task.
    """
    if share in (0.0, 1.0):
        reach = 1.0 - alpha ** (1.0 / tasks)
        return (0.0, reach) if share == 0.0 else (1.0 - reach, 1.0)
    if tasks < 2:
        return None
    z = NormalDist().inv_cdf(1 - alpha / 2)
    scale = 1.0 + z**2 / tasks
    middle = (share + z**2 / (2 * tasks)) / scale
    reach = z / scale * math.sqrt(share * (1 - share) / tasks + z**2 / (4 * tasks**2))
    return middle - reach, middle + reach


def unchanged_bound(tasks: int) -> float:
    """Return the exact two-sided 95% bound on the mean of differences in -1..1 if all observed differences are 0.

    It follows from the fact that a difference with mean m is nonzero with a probability of at least |m|.
    """
    return 1.0 - float(0.025 ** (1.0 / tasks))


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


NO_NAME = "rows without a dataset_name"


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float
    unlike_success: int
    """Number of rollouts that report success with a reward other than 1, or failure with a reward of 1."""
    agents: frozenset[str]

    @property
    def is_unit(self) -> bool:
        """Whether rewards are in 0..1 and 1 means success."""
        return self.low >= 0 and self.high <= 1 and not self.unlike_success


def why_not_comparable(scales: Mapping[str, Scale]) -> str:
    """Return why the rewards of these datasets cannot be averaged; empty if they can be.

    Rewards can be averaged in two cases: if the rows name the same agent for all datasets, because all rewards then
    come from the same environment; or if all rewards are in 0..1 and 1 means success.
    """
    agents = {agent for scale in scales.values() for agent in scale.agents}
    other = [name for name, scale in sorted(scales.items()) if not scale.is_unit]
    one_agent = len(agents) == 1 and "" not in agents
    if len(scales) < 2 or one_agent or not other:
        return ""
    scale = scales[other[0]]
    reason = f"in {other[0]} they range from {scale.low:.4g} to {scale.high:.4g}"
    if scale.low >= 0 and scale.high <= 1:
        reason = f"in {other[0]} a reward of 1 does not mean success"
    return f"the datasets have different reward scales ({reason})"


MAX_DATASETS = 100
_SHARE_NEW = 256
"""With `exact` false, means are recomputed only after one new rollout per this many tasks."""


@dataclass(frozen=True, slots=True)
class RunMeans:
    """Means over the measured rollouts, with standard errors clustered by task."""

    reward: ClusteredMean | None
    """None if nothing is measured, or if the datasets have different reward scales."""
    success: ClusteredMean | None
    """None unless every dataset reports success."""
    why_no_reward: str
    """Why there is no mean reward although rewards were measured; empty if there is one."""
    datasets: dict[str, tuple[ClusteredMean, ClusteredMean | None]]


class RunScores:
    """Accumulates the scores of measured rollouts. Keeps only a few numbers per task in memory."""

    def __init__(self) -> None:
        self.rollouts = 0
        self.parts: dict[str, Scores] = {}
        """Scores by `dataset_name`, which is '' for rows without one."""
        self._means = RunMeans(None, None, "", {})
        self._means_of = 0

    def add(self, row: RolloutRow) -> None:
        name, task, success = row.get("dataset_name"), row.get("_ng_task_index"), row.get("success")
        if not isinstance(name, str) or (name not in self.parts and len(self.parts) >= MAX_DATASETS):
            name = ""
        if name not in self.parts:
            self.parts[name] = Scores()
        self.rollouts += 1
        self.parts[name].add(
            task if type(task) is int else None,
            float(row["reward"]),
            success if isinstance(success, bool) else None,
            _agent(row.get("agent_ref")),
        )

    @property
    def tasks(self) -> int:
        return sum(part.tasks for part in self.parts.values())

    @property
    def successes(self) -> int | None:
        """Number of solved rollouts; None unless every dataset reports success."""
        parts = self.parts.values()
        return sum(part.solved for part in parts) if parts and all(part.reported for part in parts) else None

    def means(self, *, exact: bool = True) -> RunMeans:
        """Return the means. If `exact` is false, they may be slightly stale, because computing them for many tasks
        takes milliseconds.
        """
        if self.rollouts - self._means_of >= (1 if exact else max(1, self.tasks // _SHARE_NEW)):
            self._means, self._means_of = self._compute(), self.rollouts
        return self._means

    def _compute(self) -> RunMeans:
        scales = {
            name or NO_NAME: Scale(part.low, part.high, part.unlike_success, frozenset(part.agents))
            for name, part in self.parts.items()
        }
        why = why_not_comparable(scales)
        own = {name: (mean_reward([part]), success_rate([part])) for name, part in sorted(self.parts.items()) if name}
        has_datasets = len(self.parts) > 1
        return RunMeans(
            reward=None if why else mean_reward(self.parts.values()),
            success=success_rate(self.parts.values()),
            why_no_reward=why,
            datasets={name: (mean, rate) for name, (mean, rate) in own.items() if mean} if has_datasets else {},
        )


def _agent(ref: Any) -> str:
    name = ref.get("name") if isinstance(ref, dict) else None
    return name if isinstance(name, str) else ""


class Spread(Record):
    """The distribution of a quantity over the rollouts or rows that have a value for it."""

    rollouts: int
    total: float
    mean: float
    min: float
    median: float
    p95: float
    max: float


def spread(values: NDArray[np.float64]) -> Spread | None:
    """Return the distribution of the values, ignoring NaN, which marks a missing value. None if all are missing."""
    import numpy as np

    recorded = values[~np.isnan(values)]
    if not len(recorded):
        return None
    median, high = np.quantile(recorded, [0.5, 0.95])
    total = math.fsum(recorded.tolist())
    return Spread(
        rollouts=len(recorded),
        total=total,
        mean=total / len(recorded),
        min=float(recorded.min()),
        median=float(median),
        p95=float(high),
        max=float(recorded.max()),
    )
