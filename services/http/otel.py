"""Telemetry with OpenTelemetry's SDK: one trace for each episode, and the servers' Prometheus metrics through OTLP.

The trace id is the episode's id, which the collector chooses. Each process wraps two things, and only if telemetry is
on: the transport of its client, and the handlers of its server. The header `traceparent` (W3C) connects them, also
through channels and between servers of one process. What is exported, a thread sends later, and a full queue drops.

    client   invoke_agent NAME, chat MODEL, execute_tool NAME: the conventions for generative AI; others: POST /path
    server   POST /path, as the conventions for HTTP say
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

import orjson
from multidict import CIMultiDict
from opentelemetry import context as otel_context
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client.core import Metric

from rollyard.records.activity import EPISODE_ID_HEADER
from rollyard.records.errors import Failure
from rollyard.records.types import RESERVED_PATHS, Json, mapping
from rollyard.services.http.client import EPISODE_HEADER, RUN_HEADER, TO_HEADER, TRACE_HEADER
from rollyard.services.http.request import (
    Handler,
    HttpResponse,
    RawRequest,
    RawResponse,
    SentHeaders,
    reported_failure,
)
from rollyard.services.http.transport import Transport

log = logging.getLogger(__name__)
SCOPE = "rollyard"
CLOSE_S = 2.0
"""How long a process that ends waits for unsent spans, and as long for metrics: `ng_run` kills it after 6 s."""
LOG_EVERY_S = 60.0
MAX_TEXT = 500
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_USERINFO = re.compile(r"//[^/?#]*@")
_PROVIDER = {"gen_ai.provider.name": SCOPE}
MODEL_PATHS = frozenset({"/v1/responses", "/v1/chat/completions", "/v1/messages", "/policy/responses"})
_W3C = TraceContextTextMapPropagator()
_TRACER = otel_context.create_key("rollyard.tracer")


class Telemetry:
    """The telemetry of one process. All its servers share the exporters and their queue."""

    def __init__(
        self, server: str, spans: SpanExporter | None, metrics: MetricExporter | None, metrics_every_s: float
    ) -> None:
        """`server`: the service to which spans belong that no server of this process has asked for."""
        self._errors = _ExportErrors()
        self._spans = None if spans is None else BatchSpanProcessor(spans)
        self._metrics = metrics
        self._metrics_every_s = metrics_every_s
        self._ids = _EpisodeIds()
        self._started_ns = time.time_ns()
        self._tracer = self._tracer_of(_resource(server))

    def transport(self, transport: Transport) -> Transport:
        """Return a transport that makes a span of each POST which belongs to an episode, and passes it on."""
        return transport if self._spans is None else _TracedTransport(transport, self._tracer, self._ids)

    def handlers(self, server: str) -> Callable[[str, Handler], Handler]:
        """Return what makes a traced handler from the path and the handler of a route of `server`."""
        tracer = self._tracer_of(_resource(server))
        return lambda path, handler: handler if self._spans is None else _traced(tracer, path, handler)

    async def export_metrics(self, server: str, collect: Callable[[], Iterable[Metric]]) -> None:
        """Send the metrics of `server` every OTEL_METRIC_EXPORT_INTERVAL, and once more when cancelled."""
        if self._metrics is None:
            return
        resource, ended = _resource(server), False
        while not ended:
            try:
                await asyncio.sleep(self._metrics_every_s)
            except asyncio.CancelledError:
                ended = True
            # Collected here, where nothing changes meanwhile, and sent in a thread of its own, which may be late.
            try:
                data = _metrics_data(collect(), resource, self._started_ns)
                sending = threading.Thread(target=self._metrics.export, args=(data,), daemon=True)
                sending.start()
            except Exception:
                log.exception("%s: its metrics cannot be exported", server)
                continue
            if ended:
                await self._wait(sending)

    async def close(self) -> None:
        """Send what is left, for at most CLOSE_S, and only as long as the endpoint responds."""
        if self._spans is not None:
            closing = threading.Thread(target=self._spans.shutdown, daemon=True)
            closing.start()
            await self._wait(closing)

    async def _wait(self, sending: threading.Thread) -> None:
        """Many servers wait at once: threads that wait would be too few, and take turns."""
        until = time.monotonic() + CLOSE_S
        while sending.is_alive() and not self._errors.are_recent and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def _tracer_of(self, resource: Resource) -> Tracer:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=self._ids)
        if self._spans is not None:
            provider.add_span_processor(self._spans)
        return provider.get_tracer(SCOPE)


def _resource(server: str) -> Resource:
    """Return the resource of a server. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have precedence."""
    instance = f"{server}-{socket.gethostname()}-{os.getpid()}"
    own = {"service.name": server, "service.namespace": SCOPE, "service.instance.id": instance}
    return Resource.create(own).merge(OTELResourceDetector().detect())


class _EpisodeIds(RandomIdGenerator):
    """Random ids, except for the trace of an episode."""

    def __init__(self) -> None:
        self.episode = ""
        """The episode that the next trace belongs to; empty if it belongs to none."""

    def generate_trace_id(self) -> int:
        return int(self.episode, 16) if self.episode else super().generate_trace_id()


# --- the client's end -----------------------------------------------------------------------------------------------


class _TracedTransport:
    def __init__(self, transport: Transport, tracer: Tracer, ids: _EpisodeIds) -> None:
        self._transport = transport
        self._tracer = tracer
        self._ids = ids

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, channel: bool = False
    ) -> HttpResponse:
        episode = _episode(headers)
        caller = get_current_span()
        if method != "POST" or not (episode or caller.get_span_context().is_valid):
            return await self._transport.send(method, url, body, headers, timeout_s, channel)
        path = _address(url)[2]
        with self._span(url, headers, body, episode) as span:
            sent = SentHeaders(headers)
            _W3C.inject(sent)
            response = await self._transport.send(method, url, body, sent, timeout_s, channel)
            if span.is_recording():
                _describe(span, caller, path, response)
                if path == "/run":
                    headers = CIMultiDict(response.headers)
                    headers[TRACE_HEADER] = sent["traceparent"]
                    response = response._replace(headers=headers)
            return response

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        """Like `Transport.stream`. The span of a stream ends with the head of its response."""
        episode = _episode(headers)
        if method != "POST" or not (episode or get_current_span().get_span_context().is_valid):
            return await self._transport.stream(method, url, body, headers, timeout_s)
        with self._span(url, headers, body, episode) as span:
            sent = SentHeaders(headers)
            _W3C.inject(sent)
            response, chunks = await self._transport.stream(method, url, body, sent, timeout_s)
            _record_status(span, response)
            return response, chunks

    async def close(self) -> None:
        await self._transport.close()

    @contextmanager
    def _span(self, url: str, headers: Mapping[str, str], body: bytes, episode: str) -> Iterator[Span]:
        host, port, path = _address(url)
        server, word = headers.get(TO_HEADER, ""), path[1:]
        about: dict[str, str | int] = {"server.address": host, "server.port": port}
        kind = SpanKind.CLIENT
        if path == "/run":
            name = f"invoke_agent {server}"
            about |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": server, **_PROVIDER}
            about |= _indices(body)
            about["rollyard.run_id"] = headers.get(RUN_HEADER, "")
        elif path in MODEL_PATHS:
            name = "chat"
            about |= {"gen_ai.operation.name": "chat", **_PROVIDER}
        elif word in RESERVED_PATHS:
            name = f"POST {path}"
            about |= {"http.request.method": "POST", "url.full": _USERINFO.sub("//", url)}
        else:
            name, kind = f"execute_tool {word}", SpanKind.INTERNAL
            about |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": word, "gen_ai.tool.type": "function"}
        if episode:
            about["gen_ai.conversation.id"] = episode
        # Read at once by `generate_trace_id` if there is no current span; nothing else can run meanwhile.
        self._ids.episode = episode
        tracer = cast(Tracer, otel_context.get_value(_TRACER) or self._tracer)
        span = tracer.start_span(name, kind=kind, attributes=about)
        self._ids.episode = ""
        with _current(span, tracer):
            yield span


@contextmanager
def _current(span: Span, tracer: Tracer) -> Iterator[None]:
    """Make the span the current one until the block ends, and record what the block raises."""
    token = otel_context.attach(otel_context.set_value(_TRACER, tracer, set_span_in_context(span)))
    try:
        yield
    except BaseException as error:
        kind = error.kind if isinstance(error, Failure) else type(error).__name__
        span.set_attribute("error.type", str(kind))
        span.set_status(StatusCode.ERROR, str(error)[:MAX_TEXT])
        raise
    finally:
        otel_context.detach(token)
        span.end()


@lru_cache(maxsize=1024)
def _address(url: str) -> tuple[str, int, str]:
    """Return host, port and path."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), parts.path


def _episode(headers: Mapping[str, str]) -> str:
    """Return the id of the episode that a request belongs to; empty if it names none that can be a trace id."""
    given = headers.get(EPISODE_ID_HEADER) or headers.get(EPISODE_HEADER) or ""
    return given if _TRACE_ID.fullmatch(given) and given.strip("0") else ""


def _indices(body: bytes) -> Json:
    row = _object(body)
    keys = ("_ng_task_index", "_ng_rollout_index")
    return {key.replace("_ng_", "rollyard."): row[key] for key in keys if isinstance(row.get(key), int)}


def _object(body: bytes) -> Json:
    try:
        return mapping(orjson.loads(body))
    except orjson.JSONDecodeError:
        return {}


def _record_status(span: Span, response: HttpResponse) -> None:
    span.set_attribute("http.response.status_code", response.status)
    if response.status >= 400:
        failure = reported_failure(response, "")
        span.set_attribute("error.type", str(response.status if failure is None else failure.kind))
        span.set_status(StatusCode.ERROR, "" if failure is None else failure.problem.detail[:MAX_TEXT])


def _describe(span: Span, caller: Span, path: str, response: HttpResponse) -> None:
    """Add what the response says: the model and its tokens, or the reward, which is an event of the agent's span."""
    _record_status(span, response)
    if not response.succeeded:
        return
    if path in MODEL_PATHS:
        answer = _object(response.body)
        if isinstance(model := answer.get("model"), str):
            span.update_name(f"chat {model}")
            span.set_attributes({"gen_ai.request.model": model, "gen_ai.response.model": model})
        usage = mapping(answer.get("usage"))
        for direction, other in (("input", "prompt"), ("output", "completion")):
            tokens = usage.get(f"{direction}_tokens", usage.get(f"{other}_tokens"))
            if isinstance(tokens, int):
                span.set_attribute(f"gen_ai.usage.{direction}_tokens", tokens)
        if isinstance(status := answer.get("status"), str):
            span.set_attribute("gen_ai.response.finish_reasons", (status,))
    elif path == "/verify":
        reward = _object(response.body).get("reward")
        if isinstance(reward, int | float):
            score: dict[str, str | float] = {
                "gen_ai.evaluation.name": "reward",
                "gen_ai.evaluation.score.value": float(reward),
            }
            caller.add_event("gen_ai.evaluation.result", score)


# --- the server's end -----------------------------------------------------------------------------------------------


def _traced(tracer: Tracer, path: str, handler: Handler) -> Handler:
    """Return the handler of a route with a span for each request that belongs to a trace, or is an episode."""
    name, about = "POST", {"http.request.method": "POST"}
    if path.startswith("/"):
        name, about = f"POST {path}", {**about, "http.route": path}

    @functools.wraps(handler)
    async def handle(call: RawRequest) -> bytes | RawResponse:
        given = {name: call.header(name.encode()) for name in _W3C.fields}
        if given["traceparent"] is None and path != "/run":
            return await handler(call)
        parent = _W3C.extract({name: value for name, value in given.items() if value is not None})
        span = tracer.start_span(name, parent, SpanKind.SERVER, {**about, "url.path": call.path})
        with _current(span, tracer):
            sent: dict[str, str] = {}
            _W3C.inject(sent)
            # An engine behind a model server gets these headers too.
            call.headers = {**call.headers, **{name.encode(): value.encode() for name, value in sent.items()}}
            answer = await handler(call)
            status = answer.status if isinstance(answer, RawResponse) else 200
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(StatusCode.ERROR)
            return answer

    return handle


# --- metrics --------------------------------------------------------------------------------------------------------


def _metrics_data(families: Iterable[Metric], resource: Resource, started_ns: int) -> MetricsData:
    """Return Prometheus metrics as OTLP's data model has them. Values count from `started_ns` on."""
    now = time.time_ns()
    metrics = [found for family in families if (found := _metric(family, started_ns, now)) is not None]
    scope = ScopeMetrics(InstrumentationScope(SCOPE), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Metric, started_ns: int, now: int) -> OtlpMetric | None:
    data: Sum | Gauge | Histogram
    if family.type == "histogram":
        data = Histogram(_histogram(family, started_ns, now), AggregationTemporality.CUMULATIVE)
    elif family.type in ("counter", "gauge"):
        shown = f"{family.name}_total" if family.type == "counter" else family.name
        samples = [sample for sample in family.samples if sample.name == shown]
        points = [NumberDataPoint(sample.labels, started_ns, now, float(sample.value)) for sample in samples]
        total = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        data = total if family.type == "counter" else Gauge(points)
    else:
        return None
    return OtlpMetric(family.name, family.documentation, family.unit, data) if data.data_points else None


def _histogram(family: Metric, started_ns: int, now: int) -> list[HistogramDataPoint]:
    counts: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        series = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.name == f"{family.name}_bucket":
            counts.setdefault(series, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name == f"{family.name}_sum":
            sums[series] = sample.value
    points = []
    for series, up_to in counts.items():
        bounds, totals = zip(*up_to, strict=True)
        buckets = [int(total - before) for total, before in zip(totals, (0.0, *totals), strict=False)]
        unknown = cast(float, None)  # the least and the greatest value, which OTLP need not have
        point = HistogramDataPoint(
            dict(series),
            started_ns,
            now,
            int(totals[-1]),
            sums.get(series, 0.0),
            buckets,
            bounds[:-1],
            unknown,
            unknown,
        )
        points.append(point)
    return points


class _ExportErrors(logging.Filter):
    """Notes what the SDK's exporters log, and lets them log once a minute that the endpoint does not respond."""

    def __init__(self) -> None:
        super().__init__()
        self._last: float | None = None
        self._shown: float | None = None
        for name in ("trace_exporter", "metric_exporter"):
            logging.getLogger(f"opentelemetry.exporter.otlp.proto.http.{name}").addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        self._last = now = time.monotonic()
        if self._shown is not None and now < self._shown + LOG_EVERY_S:
            return False
        self._shown = now
        return True

    @property
    def are_recent(self) -> bool:
        return self._last is not None and time.monotonic() < self._last + LOG_EVERY_S
