"""Meters: what a server counts, for `GET /metrics` (Prometheus). A registry a server, no globals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import prometheus_client as prometheus
from prometheus_client.core import Metric

LATENCY_BUCKETS = (
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
    *(300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0),
)
"""Seconds; an episode, which is one request to its agent, may take hours."""
CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST


class MetricSource(Protocol):
    """Something that knows its own numbers and is asked for them only when somebody looks."""

    def collect(self) -> Iterable[Metric]:
        """The numbers as of now."""
        ...


class RouteMetrics:
    """Requests and latency of one route. Its series are looked up once, not at every request."""

    def __init__(self, path: str, latency: prometheus.Histogram, statuses: prometheus.Counter) -> None:
        self._path = path
        self._latency = latency.labels(path)
        self._statuses = statuses
        self._counters: dict[int, prometheus.Counter] = {}

    def observe(self, status: int, seconds: float) -> None:
        """One request answered."""
        self._latency.observe(seconds)
        counter = self._counters.get(status)
        if counter is None:
            counter = self._counters[status] = self._statuses.labels(self._path, str(status))
        counter.inc()


class ServerMetrics:
    """A server's registry. The process's own CPU, memory and open files are in it."""

    def __init__(self) -> None:
        self._registry = prometheus.CollectorRegistry()
        self._latency = prometheus.Histogram(
            "rollyard_request_seconds", "Time to answer", ["route"], registry=self._registry, buckets=LATENCY_BUCKETS
        )
        self._statuses = prometheus.Counter(
            "rollyard_requests", "Requests answered", ["route", "status"], registry=self._registry
        )
        self._failures = prometheus.Counter(
            "rollyard_failures", "Requests that ended in a failure of ours", ["kind", "began"], registry=self._registry
        )
        self._routes: dict[str, RouteMetrics] = {}
        prometheus.ProcessCollector(registry=self._registry)

    def route(self, path: str) -> RouteMetrics:
        """The meter of a route."""
        meter = self._routes.get(path)
        if meter is None:
            meter = self._routes[path] = RouteMetrics(path, self._latency, self._statuses)
        return meter

    def failure(self, kind: str, *, here: bool) -> None:
        """One request failed; `here`: it began at this server and was not passed on from another."""
        self._failures.labels(kind, "here" if here else "elsewhere").inc()

    def gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """A value that is read when somebody asks."""
        prometheus.Gauge(name, meaning, registry=self._registry).set_function(read)

    def add(self, measured: MetricSource) -> None:
        """Numbers that somebody else keeps."""
        self._registry.register(measured)

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return prometheus.generate_latest(self._registry)
