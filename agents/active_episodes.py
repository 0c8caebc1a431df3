"""Tracks an agent's active episodes: the stage of each one, and which ones are stuck.

An episode records its stage with a few assignments; everything else is computed on request.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from rollyard.agents.conversation import Conversation
from rollyard.records.activity import STAGES, RunningEpisode, RunningEpisodes, Stage, StageActivity
from rollyard.records.types import Json

MEDIAN_WINDOW = 256
"""Number of finished stages from which the median duration is computed."""
STUCK_AFTER_S = 30.0
STUCK_TIMES = 10.0
"""An episode is stuck once its stage takes longer than STUCK_AFTER_S and STUCK_TIMES times the median duration."""
STUCK_WITHOUT_MEDIAN_S = 300.0
"""The limit that applies while there is no median, because no stage of this kind has finished yet."""


@dataclass(slots=True, eq=False)
class EpisodeState:
    """The current stage of one episode. Times come from `time.perf_counter`."""

    episode: str
    task: int | None
    repeat: int | None
    server: str
    durations: dict[Stage, deque[float]]
    stage: Stage = "seed"
    turn: int = 0
    """Number of model calls that have been started."""
    started: float = field(default_factory=time.perf_counter)
    since: float = 0.0
    """When the current stage started."""
    spans: list[tuple[str, float]] = field(default_factory=list)
    """The finished stages in order, each with its duration in seconds."""
    row: Json = field(default_factory=dict)
    """The dataset row; empty if the caller plays in its own session."""
    conversation: Conversation | None = None
    """The conversation so far; None before the episode is created."""

    def __post_init__(self) -> None:
        self.since = self.started

    def enter(self, stage: Stage, server: str) -> float:
        """Start a stage in which the episode waits for `server`. Returns the start time."""
        self.stage = stage
        self.server = server
        self.since = now = time.perf_counter()
        if stage == "model":
            self.turn += 1
        return now

    def progress(self, now: float) -> dict[str, Any]:
        """Return the fields with which every record of an unfinished episode says how far it has got."""
        return {
            "stage": self.stage,
            "server": self.server,
            "turn": self.turn,
            "stage_s": round(now - self.since, 3),
            "age_s": round(now - self.started, 3),
        }

    def finish(self, stage: Stage, stage_started: float) -> float:
        """Record that a stage has finished. Returns its duration in seconds."""
        took = time.perf_counter() - stage_started
        self.durations[stage].append(took)
        self.spans.append((stage, took))
        return took


class ActiveEpisodes:
    def __init__(self, agent: str, *, environment: str, model: str) -> None:
        self._agent = agent
        self._servers: dict[Stage, str] = {stage: model if stage == "model" else environment for stage in STAGES}
        self._states: dict[EpisodeState, None] = {}
        self._durations: dict[Stage, deque[float]] = {stage: deque(maxlen=MEDIAN_WINDOW) for stage in STAGES}

    def __len__(self) -> int:
        return len(self._states)

    @contextmanager
    def one(self, episode: str, row: Json) -> Iterator[EpisodeState]:
        """Track an episode until the `with` block ends. It starts in the `seed` stage, waiting for its environment."""
        task, repeat = _index(row, "_ng_task_index"), _index(row, "_ng_rollout_index")
        state = EpisodeState(episode, task, repeat, self._servers["seed"], self._durations)
        self._states[state] = None
        try:
            yield state
        finally:
            del self._states[state]

    def find(self, episode: str) -> EpisodeState | None:
        """Return the active episode with this id. It is searched for only when somebody asks."""
        return next((state for state in self._states if state.episode == episode), None)

    def now(self, limit: int | None) -> RunningEpisodes:
        """Return a snapshot: the counts per stage, and the `limit` oldest episodes (all if None)."""
        now = time.perf_counter()
        medians = {stage: statistics.median(took) for stage, took in self._durations.items() if took}
        shown: list[RunningEpisode] = []
        groups: dict[tuple[Stage, str], list[EpisodeState]] = {}
        for state in self._states:
            groups.setdefault((state.stage, state.server), []).append(state)
            if limit is None or len(shown) < limit:
                shown.append(self._record(state, now, medians))
        stages: list[StageActivity] = []
        for (stage, server), states in sorted(groups.items(), key=lambda item: (STAGES.index(item[0][0]), item[0][1])):
            median = medians.get(stage)
            slowest = min(states, key=lambda state: state.since)
            stages.append(
                StageActivity(
                    stage=stage,
                    server=server,
                    episodes=len(states),
                    median_s=None if median is None else round(median, 6),
                    stuck=sum(is_stuck(now - state.since, median) for state in states),
                    slowest=self._record(slowest, now, medians),
                )
            )
        return RunningEpisodes(agent=self._agent, total=len(self._states), stages=stages, episodes=shown)

    def collect(self) -> Iterable[Metric]:
        running = GaugeMetricFamily("rollyard_episodes", "Active episodes", labels=["stage", "waits_for"])
        stuck = GaugeMetricFamily("rollyard_episodes_stuck", "Stuck active episodes", labels=["stage", "waits_for"])
        oldest = GaugeMetricFamily("rollyard_episode_oldest_seconds", "Age of the oldest active episode")
        # A stage without episodes is reported as 0, because a series that disappears looks like a server that is down.
        counts = dict.fromkeys(STAGES, (0, 0))
        counts |= {now.stage: (now.episodes, now.stuck) for now in self.now(0).stages}
        for stage, server in self._servers.items():
            running.add_metric([stage, server], counts[stage][0])
            stuck.add_metric([stage, server], counts[stage][1])
        first = next(iter(self._states), None)
        oldest.add_metric([], 0.0 if first is None else time.perf_counter() - first.started)
        yield from (running, stuck, oldest)

    def _record(self, state: EpisodeState, now: float, medians: dict[Stage, float]) -> RunningEpisode:
        return RunningEpisode(
            agent=self._agent,
            episode=state.episode,
            task=state.task,
            repeat=state.repeat,
            **state.progress(now),
            stuck=is_stuck(now - state.since, medians.get(state.stage)),
        )


def is_stuck(stage_s: float, median_s: float | None) -> bool:
    """Return whether an episode that has been in its stage for `stage_s` is stuck. `median_s` is None if unknown."""
    return stage_s > (STUCK_WITHOUT_MEDIAN_S if median_s is None else max(STUCK_AFTER_S, STUCK_TIMES * median_s))


def _index(row: Json, key: str) -> int | None:
    value = row.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
