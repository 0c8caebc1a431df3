"""CollectionSummary: what `rollyard.collect` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.rollout_file import RolloutPaths, Rollouts
from rollyard.records.types import State
from rollyard.services.rollouts.progress import CollectionProgress


@dataclass(frozen=True)
class CollectionSummary:
    """The result of a collection, including the rollouts of earlier calls."""

    state: State
    """`complete`; `incomplete`: some rollouts failed permanently; `stopped`: see `stopped_because`."""
    expected: int
    """Total number of rollouts: rows times repeats."""
    measured: int
    collected: int
    failed: int
    """Rollouts that failed permanently. They have no reward and are not in the file."""
    failed_attempts: int
    """Failed attempts of this call, including those of rollouts that succeeded later."""
    failures: Mapping[str, int]
    mean_reward: float | None
    """None if no rollout was measured, or if the datasets of a mixture have different reward scales."""
    reward_stderr: float | None
    success_rate: float | None
    """None unless every environment reports success."""
    stopped_because: str
    """Why the collection was stopped; empty unless the state is `stopped`."""
    output: Path
    failures_file: Path
    """The file with the failed attempts, one per line. It may not exist if no attempt has failed."""

    @property
    def rollouts(self) -> Rollouts:
        """The rows of the rollout file."""
        return Rollouts(self.output)


def summary_of(
    state: State, progress: CollectionProgress, why: str, paths: RolloutPaths, own: CollectionProgress
) -> CollectionSummary:
    """`own`: the progress of this call, if `progress` is that of several calls whose files were merged."""
    means = progress.means()
    return CollectionSummary(
        state=state,
        expected=progress.expected,
        measured=progress.measured,
        collected=own.collected,
        failed=progress.failed,
        failed_attempts=own.failed_attempts,
        failures=dict(own.kinds),
        mean_reward=None if means.reward is None else means.reward.value,
        reward_stderr=None if means.reward is None else means.reward.stderr,
        success_rate=None if means.success is None else means.success.value,
        stopped_because=why,
        output=paths.output,
        failures_file=paths.failures,
    )
