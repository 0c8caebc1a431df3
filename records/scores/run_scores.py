"""Tracks the scores of a run while rollouts arrive, overall and by dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollyard.records.rollout_types import RolloutRow
from rollyard.records.scores.reward_scale import NO_NAME, Scale, why_not_comparable
from rollyard.records.scores.running_mean import ClusteredMean, Scores, mean_reward, success_rate

MAX_DATASETS = 100
"""Upper bound on distinct dataset names, because rows are user input."""
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
    """Mean reward and success rate of each dataset; empty unless there are several datasets."""


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
        """Number of tasks with at least one rollout."""
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
