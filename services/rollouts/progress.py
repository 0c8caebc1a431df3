"""Tally: what a collection has come to so far; in memory it keeps a few numbers a task."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rollyard.services.metrics.run_scores import RunMeans, RunScores
from rollyard.services.metrics.running_mean import ClusteredMean, Scores
from rollyard.services.rollout_types import RolloutRow
from rollyard.services.types import CollectionStatus, DatasetStatus, State


class CollectionProgress:
    """Counts, and the figures of what is measured."""

    def __init__(self, expected: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.expected = expected
        self.measured = 0
        self.failed = 0
        """Rollouts given up."""
        self.failed_attempts = 0
        self.token_turns = 0
        """Later turns of the model whose tokens are on record."""
        self.token_breaks = 0
        """Those of them whose prompt does not begin with the turn before."""
        self.kinds: Counter[str] = Counter()
        self.scores = RunScores()
        self._before = 0
        self._failed_before = 0
        self._running: dict[tuple[int, int], float] = {}
        self._clock = clock
        self._begun = clock()

    def begin(self, key: tuple[int, int]) -> None:
        """The rollout of that task and repeat is being played from now on."""
        self._running[key] = self._clock()

    def end(self, key: tuple[int, int]) -> None:
        """It is not any more, whatever came of it."""
        del self._running[key]

    def count(self, row: RolloutRow) -> None:
        """One measured rollout."""
        self.measured += 1
        self.scores.add(row)
        trail = row.get("token_trail")
        if isinstance(trail, dict):
            self.token_turns += _count(trail.get("turns"))
            self.token_breaks += _count(trail.get("breaks"))

    def resumed(self) -> None:
        """What is counted so far was there before: it does not enter the rate."""
        self._before = self.measured
        self._failed_before = self.failed
        self._begun = self._clock()

    def count_failure(self, kind: str, *, given_up: bool) -> None:
        """One failed attempt; `given_up`: no other follows."""
        self.failed_attempts += 1
        self.kinds[kind] += 1
        self.failed += given_up

    @property
    def successes(self) -> int | None:
        """Solved rollouts; None where not every data set reports success."""
        return self.scores.successes

    def means(self, *, exact: bool = True) -> RunMeans:
        """Of what is measured; see `RunScores.means`."""
        return self.scores.means(exact=exact)

    @property
    def in_flight(self) -> int:
        """Rollouts being played."""
        return len(self._running)

    @property
    def oldest_s(self) -> float:
        """Age of the oldest rollout being played, all of its attempts together; 0 without any."""
        begun = next(iter(self._running.values()), None)
        return 0.0 if begun is None else self._clock() - begun

    @property
    def collected(self) -> int:
        """Rollouts measured by this command."""
        return self.measured - self._before

    @property
    def given_up(self) -> int:
        """Rollouts given up by this command."""
        return self.failed - self._failed_before

    @property
    def drift(self) -> float | None:
        """Share of later turns that break the trail of tokens; None where no tokens are recorded."""
        return self.token_breaks / self.token_turns if self.token_turns else None

    @property
    def elapsed_s(self) -> float:
        """Since this command began to collect."""
        return max(self._clock() - self._begun, 1e-9)

    @property
    def rate(self) -> float:
        """Rollouts a second of this command."""
        return self.collected / self.elapsed_s

    @property
    def eta_s(self) -> float | None:
        """Seconds until the rest is measured at this rate."""
        left = self.expected - self.measured - self.failed
        return left / self.rate if self.collected else None

    def status(self, state: State, note: str = "") -> CollectionStatus:
        """As it stands, for `X_status.json`."""
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
            oldest_s=round(self.oldest_s, 1),
            successes=self.successes,
            token_turns=self.token_turns,
            token_breaks=self.token_breaks,
            success_stderr=None if success is None else success.stderr,
            mean_reward=None if reward is None else reward.value,
            reward_stderr=None if reward is None else reward.stderr,
            datasets={name: _dataset(self.scores.parts[name], *own) for name, own in means.datasets.items()},
            rollouts_per_s=round(self.rate, 3),
            eta_s=None if self.eta_s is None else round(self.eta_s, 1),
            failures=dict(self.kinds),
            updated=time.time(),
            pid=os.getpid(),
            note=note,
        )


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
    """A number of turns; 0 for anything else that an environment may have put there."""
    return value if type(value) is int and 0 <= value < 2**40 else 0
