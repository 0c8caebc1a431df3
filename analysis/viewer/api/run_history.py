"""Keeps the recent history of the current run for its charts."""

from __future__ import annotations

from collections import deque

from rollyard.analysis.charts.chart import Chart
from rollyard.analysis.charts.pace import Moment, pace
from rollyard.analysis.charts.waiting import waiting
from rollyard.services.head.run_snapshot import RunSnapshot

MAX_MOMENTS = 600
"""Maximum number of moments: ten minutes at one request per second."""


class RunHistory:
    """The history of one run. It is cleared when a different run starts."""

    def __init__(self) -> None:
        self._latest: RunSnapshot | None = None
        self._moments: deque[Moment] = deque(maxlen=MAX_MOMENTS)

    def add(self, live: RunSnapshot) -> None:
        """Add a snapshot. Snapshots without a run are ignored, because the head may become reachable again."""
        if not live.run_id:
            return
        if self._latest is not None and self._latest.run_id != live.run_id:
            self._moments.clear()
        self._latest = live
        running = [one.status for one in live.collections if one.status.state == "running"]
        rate = sum(status.rollouts_per_s for status in running)
        self._moments.append(Moment(time=live.time, rollouts_per_s=rate, in_progress=live.total))

    def charts(self) -> list[Chart]:
        """Return charts of throughput (if there are at least two moments) and of rollouts in progress by stage."""
        wait = waiting(self._latest.stages) if self._latest is not None else None
        return [*pace(tuple(self._moments)), *([] if wait is None else [wait])]
