"""Counts the rollouts and failures of a running collection, keeping only a few numbers per task in memory."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.records.activity import ModelLoad
from rollyard.records.rewards import mask_of
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.scores import ClusteredMean, RunMeans, RunScores, Scores
from rollyard.records.types import CollectionStatus, DatasetStatus, State


@dataclass(frozen=True)
class FoundConcurrency:
    """The number of concurrent rollouts that was found."""

    limit: int
    why: str
    """Why it is not higher, or that several collectors have found it."""


class CollectionProgress:
    def __init__(self, expected: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.expected = expected
        self.measured = 0
        self.failed = 0
        """Number of permanently failed rollouts, including those from earlier commands and masked ones."""
        self.masked = 0
        """Number of rollouts that are stored, but masked: their environment or agent says that they have no score."""
        self.failed_attempts = 0
        self.token_turns = 0
        """Number of model turns with recorded token ids, not counting the first turn of each episode."""
        self.token_breaks = 0
        """Number of those turns whose prompt does not start with the previous turn's tokens (prefix mismatches)."""
        self.kinds: Counter[str] = Counter()
        self.scores = RunScores()
        self.concurrency: FoundConcurrency | None = None
        """None if the number of concurrent rollouts was set by hand."""
        self._ended = 0
        self._ended_s = 0.0
        """Sum of the durations of the rollouts that ended."""
        self._before = 0
        self._failed_before = 0
        self._running: dict[tuple[int, int], float] = {}
        self._clock = clock
        self._started_at = clock()
        self._started = time.time()

    def begin(self, key: tuple[int, int]) -> None:
        self._running[key] = self._clock()

    def end(self, key: tuple[int, int]) -> None:
        self._ended += 1
        self._ended_s += self._clock() - self._running.pop(key)

    def load(self) -> ModelLoad:
        """Return the load in rollouts, where no model server counts its calls."""
        return ModelLoad(
            finished=self._ended, failed=self.newly_failed, seconds=self._ended_s, in_flight=self.in_flight
        )

    def count(self, row: RolloutRow) -> None:
        """Count one stored rollout. A masked one is not measured, and is not run again: it counts as failed."""
        if mask_of(row):
            self.masked += 1
            self.failed += 1
            return
        self.measured += 1
        self.scores.add(row)
        token_trail = row.get("token_trail")
        if isinstance(token_trail, dict):
            self.token_turns += _count(token_trail.get("turns"))
            self.token_breaks += _count(token_trail.get("breaks"))

    def resumed(self) -> None:
        """Exclude the rollouts counted so far, which are from earlier commands, from the rate."""
        self._before = self.measured
        self._failed_before = self.failed
        self._started_at = self._clock()
        self._started = time.time()

    def count_failure(self, kind: str, *, permanent: bool) -> None:
        """Count one failed attempt. `permanent`: whether the rollout will not be retried."""
        self.failed_attempts += 1
        self.kinds[kind] += 1
        self.failed += permanent

    def take_over(self, rows: CollectionProgress, status: CollectionStatus) -> None:
        """Take the stored rollouts from `rows` and the failures from `status`, if other processes have counted them."""
        self.measured, self.masked, self.scores = rows.measured, rows.masked, rows.scores
        self.token_turns, self.token_breaks = rows.token_turns, rows.token_breaks
        self.failed, self.failed_attempts = status.failed, status.failed_attempts
        self.kinds = Counter(status.failures)
        if status.concurrency is not None:
            self.concurrency = FoundConcurrency(status.concurrency, "the sum over the collectors")

    @property
    def successes(self) -> int | None:
        """Number of solved rollouts, or None unless every dataset reports success."""
        return self.scores.successes

    def means(self, *, exact: bool = True) -> RunMeans:
        """Return the means over the measured rollouts, as `RunScores.means` does."""
        return self.scores.means(exact=exact)

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def oldest_s(self) -> float:
        """Age in seconds of the oldest running rollout, including all of its attempts; 0 if none is running."""
        started_at = next(iter(self._running.values()), None)
        return 0.0 if started_at is None else self._clock() - started_at

    @property
    def collected(self) -> int:
        return self.measured - self._before

    @property
    def newly_failed(self) -> int:
        return self.failed - self._failed_before

    @property
    def elapsed_s(self) -> float:
        return max(self._clock() - self._started_at, 1e-9)

    @property
    def rate(self) -> float:
        return self.collected / self.elapsed_s

    @property
    def eta_s(self) -> float | None:
        """Estimated seconds until the remaining rollouts are measured; None before this command has measured one."""
        remaining = self.expected - self.measured - self.failed
        return remaining / self.rate if self.collected else None

    def status(self, state: State, note: str = "") -> CollectionStatus:
        """Return the current status, for `X_status.json`."""
        means = self.means(exact=state != "running")
        reward, success = means.reward, means.success
        return CollectionStatus(
            state=state,
            expected=self.expected,
            measured=self.measured,
            tasks=self.scores.tasks,
            failed=self.failed,
            failed_attempts=self.failed_attempts,
            in_flight=self.in_flight,
            concurrency=None if self.concurrency is None else self.concurrency.limit,
            oldest_s=round(self.oldest_s, 1),
            successes=self.successes,
            token_turns=self.token_turns,
            token_breaks=self.token_breaks,
            success_stderr=None if success is None else success.stderr,
            mean_reward=None if reward is None else reward.value,
            reward_stderr=None if reward is None else reward.stderr,
            datasets={
                name: _dataset(self.scores.parts[name], *means_of_dataset)
                for name, means_of_dataset in means.datasets.items()
            },
            rollouts_per_s=round(self.rate, 3),
            eta_s=None if self.eta_s is None else round(self.eta_s, 1),
            failures=dict(self.kinds),
            started=self._started,
            updated=time.time(),
            pid=os.getpid(),
            note=note,
        )


def summed(before: CollectionStatus, shards: Sequence[CollectionStatus]) -> CollectionStatus:
    """Return the status of a collection whose shards have these. `before`: its status at its start.

    There are no standard errors: repeats of one task are in several shards.
    """
    measured, failed = sum(each.measured for each in shards), sum(each.failed for each in shards)
    now = time.time()
    elapsed_s, collected = max(now - before.started, 1e-9), measured - before.measured
    found = [each for each in shards if each.measured]
    parts: dict[str, list[DatasetStatus]] = {}
    for name, part in (one for each in found for one in each.datasets.items()):
        parts.setdefault(name, []).append(part)
    return before.model_copy(
        update={
            "measured": measured,
            "failed": failed,
            "tasks": max(each.tasks for each in shards),
            "successes": _sum(found),
            "success_stderr": None,
            "mean_reward": _mean(found),
            "reward_stderr": None,
            "datasets": {name: _summed_dataset(parts[name]) for name in sorted(parts)},
            "failed_attempts": sum(each.failed_attempts for each in shards),
            "in_flight": sum(each.in_flight for each in shards),
            "concurrency": sum(each.concurrency or 0 for each in shards) or None,
            "oldest_s": max(each.oldest_s for each in shards),
            "token_turns": sum(each.token_turns for each in shards),
            "token_breaks": sum(each.token_breaks for each in shards),
            "rollouts_per_s": round(collected / elapsed_s, 3),
            "eta_s": round((before.expected - measured - failed) * elapsed_s / collected, 1) if collected > 0 else None,
            "failures": dict(sum((Counter(each.failures) for each in shards), Counter[str]())),
            "updated": now,
        }
    )


def _summed_dataset(parts: Sequence[DatasetStatus]) -> DatasetStatus:
    return DatasetStatus(
        measured=sum(part.measured for part in parts),
        tasks=max(part.tasks for part in parts),
        successes=_sum(parts),
        success_stderr=None,
        mean_reward=_mean(parts) or 0.0,
        reward_stderr=None,
    )


def _sum(parts: Sequence[CollectionStatus | DatasetStatus]) -> int | None:
    counts = [part.successes for part in parts if part.successes is not None]
    return sum(counts) if parts and len(counts) == len(parts) else None


def _mean(parts: Sequence[CollectionStatus | DatasetStatus]) -> float | None:
    sums = [part.mean_reward * part.measured for part in parts if part.mean_reward is not None]
    return sum(sums) / sum(part.measured for part in parts) if parts and len(sums) == len(parts) else None


def _dataset(part: Scores, reward: ClusteredMean, success: ClusteredMean | None) -> DatasetStatus:
    return DatasetStatus(
        measured=part.rollouts,
        tasks=part.tasks,
        successes=part.solved if part.reported else None,
        success_stderr=None if success is None else success.stderr,
        mean_reward=reward.value,
        reward_stderr=reward.stderr,
    )


def _count(value: Any) -> int:
    """Return `value` if it is a plausible count, else 0, because environments can write any value."""
    return value if type(value) is int and 0 <= value < 2**40 else 0
