"""Computes a tracker's metrics from a growing rollout file. Keeps only a few numbers per task in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

from rollyard.analysis.tracking.tracker import ROLLOUTS
from rollyard.records.io.json_values import mapping
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.rollouts.rewards import is_measured
from rollyard.records.scores.run_scores import RunScores
from rollyard.records.scores.running_mean import ClusteredMean
from rollyard.records.types import MAX_REWARD, Json


class Mean:
    """The mean of a value over the rows that contain it."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, value: Any) -> None:
        """Add a finite number or a boolean. Any other value is treated as missing."""
        if isinstance(value, int | float) and -MAX_REWARD <= value <= MAX_REWARD:
            self._sum += value
            self._count += 1

    @property
    def value(self) -> float | None:
        """The mean; None if no value was added."""
        return self._sum / self._count if self._count else None


class RolloutMetrics:
    """Means over the measured rollouts. They are those of ng_reward_profile."""

    def __init__(self) -> None:
        self.measured = 0
        self._scores = RunScores()
        self._means = {
            "truncated/rate": Mean(),
            "tool_calls/mean": Mean(),
            "turns/mean": Mean(),
            "output_tokens/mean": Mean(),
            "episode_seconds/mean": Mean(),
        }
        self._ends: Counter[str] = Counter()

    def add(self, row: Json) -> bool:
        """Add a row; return False if it is not a measured rollout."""
        if not is_measured(row):
            return False
        self.measured += 1
        self._scores.add(cast(RolloutRow, row))
        timings = mapping(row.get("timings"))
        values = {
            "truncated/rate": row.get("truncated"),
            "tool_calls/mean": tool_calls(row),
            "turns/mean": timings.get("model_calls"),
            "output_tokens/mean": output_tokens(row),
            "episode_seconds/mean": timings.get("total_s"),
        }
        for name, value in values.items():
            self._means[name].add(value)
        if isinstance(end := row.get("finish_reason"), str):
            self._ends[end] += 1
        return True

    def metrics(self, failures: Mapping[str, int], *, exact: bool = True) -> dict[str, float]:
        """Return all metrics by name.

        `failures` maps failure kinds to numbers of attempts. `exact` has the same meaning as in `RunScores.means`.
        """
        found = {name: mean.value for name, mean in self._means.items()}
        means = self._scores.means(exact=exact)
        return {
            ROLLOUTS: self.measured,
            **_named("", means.reward, means.success),
            **{
                name: value
                for dataset, (reward, success) in means.datasets.items()
                for name, value in _named(f"dataset/{dataset}/", reward, success).items()
            },
            **{name: value for name, value in found.items() if value is not None},
            **{f"end/{end}": count / self.measured for end, count in self._ends.most_common(20)},
            **{f"failed_attempts/{kind}": count for kind, count in failures.items()},
        }


def _named(prefix: str, reward: ClusteredMean | None, success: ClusteredMean | None) -> dict[str, float]:
    """Return the mean reward with its standard error, and the success rate with its 95% interval, both clustered by
    task.
    """
    found: dict[str, float] = {}
    if reward is not None:
        found[f"{prefix}reward/mean"] = reward.value
        if reward.stderr is not None:
            found[f"{prefix}reward/stderr"] = reward.stderr
    if success is not None:
        found[f"{prefix}success/rate"] = success.value
        if (interval := success.share_interval) is not None:
            found[f"{prefix}success/low"], found[f"{prefix}success/high"] = interval
    return found


def tool_calls(row: Json) -> int:
    output = mapping(row.get("response")).get("output")
    items = output if isinstance(output, list) else []
    return sum(isinstance(item, dict) and item.get("type") == "function_call" for item in items)


def output_tokens(row: Json) -> Any:
    """Return the number of output tokens in the entire episode, if the endpoint reported it."""
    return mapping(mapping(row.get("response")).get("usage")).get("output_tokens")
