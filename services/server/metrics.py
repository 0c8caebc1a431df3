"""A server's metrics for `GET /metrics` (Prometheus). Each server has its own registry; nothing is global."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import prometheus_client as prometheus
from prometheus_client.core import Metric

LATENCY_BUCKETS = (
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
    *(300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0),
)
"""In seconds. An episode is a single request to its agent, which can take hours."""
CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST


class MetricSource(Protocol):
    """A source of metrics that are computed at each scrape."""

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics."""
        ...


class RouteMetrics:
    """Request counts and latency of one route. Caches the series instead of looking them up for each request."""

    def __init__(self, path: str, latency: prometheus.Histogram, statuses: prometheus.Counter) -> None:
        self._path = path
        self._latency = latency.labels(path)
        self._statuses = statuses
        self._counters: dict[int, prometheus.Counter] = {}

    def observe(self, status: int, seconds: float) -> None:
        """Count one request with its status and latency."""
        self._latency.observe(seconds)
        counter = self._counters.get(status)
        if counter is None:
            counter = self._counters[status] = self._statuses.labels(self._path, str(status))
        counter.inc()


class ServerMetrics:
    """A server's Prometheus registry, which includes the process's CPU, memory and open files."""

    def __init__(self) -> None:
        self._registry = prometheus.CollectorRegistry()
        self._latency = prometheus.Histogram(
            "rollyard_request_seconds", "Request latency", ["route"], registry=self._registry, buckets=LATENCY_BUCKETS
        )
        self._statuses = prometheus.Counter(
            "rollyard_requests", "Requests by route and status", ["route", "status"], registry=self._registry
        )
        self._failures = prometheus.Counter(
            "rollyard_failures", "Failed requests by failure kind", ["kind", "began"], registry=self._registry
        )
        self._routes: dict[str, RouteMetrics] = {}
        prometheus.ProcessCollector(registry=self._registry)

    def route(self, path: str) -> RouteMetrics:
        """Return the metrics of a route, created on first use."""
        metrics = self._routes.get(path)
        if metrics is None:
            metrics = self._routes[path] = RouteMetrics(path, self._latency, self._statuses)
        return metrics

    def failure(self, kind: str, *, here: bool) -> None:
        """Count a failed request. `here`: the failure originated at this server and was not passed on from another."""
        self._failures.labels(kind, "here" if here else "elsewhere").inc()

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a gauge that calls `read` at each scrape."""
        prometheus.Gauge(name, help_text, registry=self._registry).set_function(read)

    def add(self, source: MetricSource) -> None:
        """Add the metrics of `source`."""
        self._registry.register(source)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return prometheus.generate_latest(self._registry)
