"""Receives what OpenTelemetry's exporters send, in this process, with the official protobuf classes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACES, METRICS = "/v1/traces", "/v1/metrics"


@dataclass(frozen=True)
class ReceivedSpan:
    service: str
    trace: str
    span: str
    parent: str
    """Empty for the root of a trace."""
    name: str
    attributes: Mapping[str, Any]
    events: Mapping[str, Mapping[str, Any]]
    failed: bool


@dataclass
class Received:
    url: str = ""
    """For OTEL_EXPORTER_OTLP_ENDPOINT."""
    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: list[tuple[str, Any]] = field(default_factory=list)
    """Service and metric, as protobuf's classes have them."""

    def add(self, path: str, body: bytes) -> None:
        if path == METRICS:
            for batch in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                service = _values(batch.resource.attributes)["service.name"]
                self.metrics += [(service, metric) for scope in batch.scope_metrics for metric in scope.metrics]
            return
        for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _values(sent.resource.attributes)["service.name"]
            self.spans += [_span(service, span) for scope in sent.scope_spans for span in scope.spans]


def _span(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        _values(span.attributes),
        {event.name: _values(event.attributes) for event in span.events},
        span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def otlp_receiver() -> Iterator[Received]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.add(self.path, gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield received
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
