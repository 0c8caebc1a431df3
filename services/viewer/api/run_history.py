"""What was seen of a run that goes on, while a page asked: the moments that its charts are drawn from."""

from __future__ import annotations

from collections import deque

from rollyard.services.charts.chart import Chart
from rollyard.services.charts.pace import Moment, pace
from rollyard.services.charts.waiting import waiting
from rollyard.services.head.run_snapshot import RunSnapshot

KEPT = 600
"""Moments: ten minutes of a page that asks once a second."""


class RunHistory:
    """Of one run at a time; another run begins a new history."""

    def __init__(self) -> None:
        self._latest: RunSnapshot | None = None
        self._moments: deque[Moment] = deque(maxlen=KEPT)

    def add(self, live: RunSnapshot) -> None:
        """A look at the run. One that found no run adds nothing: the head may answer again."""
        if not live.run_id:
            return
        if self._latest is not None and self._latest.run_id != live.run_id:
            self._moments.clear()
        self._latest = live
        running = [one.status for one in live.collections if one.status.state == "running"]
        rate = sum(status.rollouts_per_s for status in running)
        self._moments.append(Moment(time=live.time, rollouts_per_s=rate, in_progress=live.total))

    def charts(self) -> list[Chart]:
        """The pace, once two moments are known, and what rollouts wait for."""
        wait = waiting(self._latest.stages) if self._latest is not None else None
        return [*pace(tuple(self._moments)), *([] if wait is None else [wait])]
