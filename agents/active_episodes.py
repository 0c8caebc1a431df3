"""Playing: the episodes of an agent that are under way, where each of them stands, and which of them is stuck.

An episode writes down its place with a few assignments as it goes from stage to stage; everything else is worked out
when somebody asks.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric

from rollyard.services.head.activity import STAGES, RunningEpisode, RunningEpisodes, Stage, StageActivity
from rollyard.services.types import Json

MEDIAN_WINDOW = 256
"""Stages that ended, kept to know what is usual."""
STUCK_AFTER_S = 30.0
STUCK_TIMES = 10.0
"""Stuck: in its stage for more than STUCK_S and more than so many times the usual."""
STUCK_WITHOUT_MEDIAN_S = 300.0
"""Stuck where nothing is usual yet, because none has ended."""


@dataclass(slots=True, eq=False)
class EpisodeState:
    """Where one episode stands. Times are of `time.perf_counter`."""

    episode: str
    task: int | None
    repeat: int | None
    server: str
    durations: dict[Stage, deque[float]]
    stage: Stage = "seed"
    turn: int = 0
    """Model calls begun."""
    began: float = field(default_factory=time.perf_counter)
    since: float = 0.0
    """Since when it is in its stage."""

    def __post_init__(self) -> None:
        self.since = self.began

    def enter(self, stage: Stage, server: str) -> float:
        """From now on it waits for `server`; returns the time now."""
        self.stage = stage
        self.server = server
        self.since = now = time.perf_counter()
        if stage == "model":
            self.turn += 1
        return now

    def ended(self, stage: Stage, begun: float) -> float:
        """A stage has brought its answer; returns the seconds that it took."""
        took = time.perf_counter() - begun
        self.durations[stage].append(took)
        return took


class ActiveEpisodes:
    """The episodes under way, oldest first."""

    def __init__(self, agent: str, *, environment: str, model: str) -> None:
        self._agent = agent
        self._servers: dict[Stage, str] = {stage: model if stage == "model" else environment for stage in STAGES}
        self._places: dict[EpisodeState, None] = {}
        self._lately: dict[Stage, deque[float]] = {stage: deque(maxlen=MEDIAN_WINDOW) for stage in STAGES}

    def __len__(self) -> int:
        return len(self._places)

    @contextmanager
    def one(self, episode: str, row: Json) -> Iterator[EpisodeState]:
        """An episode for as long as it lasts; it begins by waiting for its world."""
        task, repeat = _index(row, "_ng_task_index"), _index(row, "_ng_rollout_index")
        place = EpisodeState(episode, task, repeat, self._servers["seed"], self._lately)
        self._places[place] = None
        try:
            yield place
        finally:
            del self._places[place]

    def now(self, limit: int | None) -> RunningEpisodes:
        """Where everything stands; the oldest `limit` one by one, all of them with None."""
        now = time.perf_counter()
        medians = {stage: statistics.median(took) for stage, took in self._lately.items() if took}
        shown: list[RunningEpisode] = []
        groups: dict[tuple[Stage, str], list[EpisodeState]] = {}
        for place in self._places:
            groups.setdefault((place.stage, place.server), []).append(place)
            if limit is None or len(shown) < limit:
                shown.append(self._record(place, now, medians))
        stages: list[StageActivity] = []
        for (stage, server), places in sorted(groups.items(), key=lambda item: (STAGES.index(item[0][0]), item[0][1])):
            median = medians.get(stage)
            slowest = min(places, key=lambda place: place.since)
            stages.append(
                StageActivity(
                    stage=stage,
                    server=server,
                    episodes=len(places),
                    median_s=None if median is None else round(median, 6),
                    stuck=sum(is_stuck(now - place.since, median) for place in places),
                    slowest=self._record(slowest, now, medians),
                )
            )
        return RunningEpisodes(agent=self._agent, total=len(self._places), stages=stages, episodes=shown)

    def collect(self) -> Iterable[Metric]:
        """For Prometheus."""
        running = GaugeMetricFamily("rollyard_episodes", "Episodes being played", labels=["stage", "waits_for"])
        stuck = GaugeMetricFamily("rollyard_episodes_stuck", "Those that are stuck", labels=["stage", "waits_for"])
        oldest = GaugeMetricFamily("rollyard_episode_oldest_seconds", "Age of the oldest episode being played")
        # A stage without episodes is 0: a series that comes and goes cannot be told from a server that is down.
        counts = dict.fromkeys(STAGES, (0, 0))
        counts |= {now.stage: (now.episodes, now.stuck) for now in self.now(0).stages}
        for stage, server in self._servers.items():
            running.add_metric([stage, server], counts[stage][0])
            stuck.add_metric([stage, server], counts[stage][1])
        first = next(iter(self._places), None)
        oldest.add_metric([], 0.0 if first is None else time.perf_counter() - first.began)
        yield from (running, stuck, oldest)

    def _record(self, place: EpisodeState, now: float, medians: dict[Stage, float]) -> RunningEpisode:
        stage_s = now - place.since
        return RunningEpisode(
            agent=self._agent,
            episode=place.episode,
            task=place.task,
            repeat=place.repeat,
            stage=place.stage,
            server=place.server,
            turn=place.turn,
            age_s=round(now - place.began, 3),
            stage_s=round(stage_s, 3),
            stuck=is_stuck(stage_s, medians.get(place.stage)),
        )


def is_stuck(stage_s: float, median_s: float | None) -> bool:
    """The rule: over 30 s and over ten times what is usual; over five minutes where nothing is usual yet."""
    return stage_s > (STUCK_WITHOUT_MEDIAN_S if median_s is None else max(STUCK_AFTER_S, STUCK_TIMES * median_s))


def _index(row: Json, key: str) -> int | None:
    value = row.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
