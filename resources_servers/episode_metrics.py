"""Metrics of a resources server that reveal episodes that are not cleaned up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

FAILED_CLOSES = "rollyard_failed_closes"
TASKS = "rollyard_asyncio_tasks"


class EpisodeMetrics:
    """Counts failed calls of `close`, and the asyncio tasks of this process."""

    def __init__(self, failed_closes: Callable[[], int]) -> None:
        self._failed_closes = failed_closes

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics. Prometheus also calls this once, outside the event loop, to learn the names."""
        yield CounterMetricFamily(
            FAILED_CLOSES, "Episodes whose close raised, hung or cancelled itself", value=self._failed_closes()
        )
        yield GaugeMetricFamily(TASKS, "asyncio tasks of the process", value=_tasks())


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # no event loop is running
        return 0
