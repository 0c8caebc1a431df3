"""Server: a named FastAPI app with start and stop hooks, health checks, metrics and central error handling.

There are two kinds of routes. `self.app` is an ordinary FastAPI app for routes that are rarely called. `self.route`
adds hot routes, whose handlers take and return bytes; this saves about 60 us of CPU time per request
(benchmarks/turns.py measures the total). /openapi.json documents both.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import inspect
import logging
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import parse_qsl

import orjson
import prometheus_client as prometheus
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from starlette.exceptions import HTTPException
from starlette.routing import Match

from rollyard.records.audit import AuditLog
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.nemo_gym import name_of
from rollyard.records.run_types import Keys, play_token
from rollyard.records.types import PROBLEMS, Json
from rollyard.services.http.access import Access, KnownHosts, is_loopback, origin_of
from rollyard.services.http.client import RUN_HEADER, ServerClient
from rollyard.services.http.request import (
    Handler,
    Headers,
    HttpResponse,
    RawRequest,
    RawResponse,
    Receive,
    Scope,
    Send,
    SendResponse,
    SentHeaders,
    cancel_on_disconnect,
    joined,
    problem_response,
    read_body,
    to_problem,
    wrong_fields,
)
from rollyard.services.http.transport import Transport
from rollyard.services.server.openapi import ANY, Documented, Shape, document
from rollyard.services.server.settings import ServerSettings, redacted

if TYPE_CHECKING:
    from rollyard.services.http.otel import Telemetry

log = logging.getLogger(__name__)
REST = "other"
"""Stands for all POSTs whose path has no route."""
ROLLOUT_PREFIX, TOKEN_CAPTURE = "/ng-rollout/", "training-token-capture/"
LATENCY_BUCKETS = (
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
    *(300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0),
)
"""In seconds. An episode is a single request to its agent, which can take hours."""
PLUGIN_EXITS = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""What the code of a plug-in may raise besides an Exception. In a task, it would end the server, or the connection
without a response."""


@dataclass(frozen=True)
class Context:
    """What a server receives in addition to its settings."""

    name: str
    """Name by which other servers refer to this one."""
    keys: Keys
    client: ServerClient
    log_folder: Path | None = None
    """The folder with the run's logs."""
    endpoints: Transport | None = None
    """Transport for engines and hosted APIs. It uses the proxies that the environment variables specify."""
    instance: str = ""
    """Unique name of this process in the server directory; empty if all servers share one process."""
    telemetry: Telemetry | None = None
    """None if telemetry is off."""

    @property
    def external_transport(self) -> Transport:
        """The transport for URLs outside the run: `endpoints`, or the client's transport if that is None."""
        return self.endpoints or self.client.transport


class Server:
    """A named server. Subclasses add routes in `__init__` and may override `start` and `stop`.

    Private names are mangled (`__respond`), so that the attributes of a subclass cannot clash with them.
    """

    Settings: ClassVar[type[ServerSettings]] = ServerSettings

    def __init__(self, settings: ServerSettings, context: Context) -> None:
        self.settings = settings
        self.name = context.name
        self.context = context
        self.client = context.client
        self.ready = False
        self.starting = False
        """Whether `start` has yet to end. Clients that know the address from before a restart may already call."""
        self.requests = 0
        self.in_flight = 0
        self.__traced = context.telemetry and context.telemetry.handlers(context.name)
        self.__routes: dict[str, _Route] = {}
        self.__rest: _Route | None = None
        self.__documented: dict[str, Documented] = {}
        self.__error_formats: dict[str, Callable[[RawResponse], RawResponse]] = {}
        self.run_header = (RUN_HEADER.encode(), context.keys.run_id.encode())
        self.__own_name = context.name.encode()
        self.__token = f"Bearer {context.keys.token}".encode() if context.keys.token else b""
        self.__play_token = _play_header(context.keys.token)
        self.__play = {"/health", "/ready"}
        self.__audit = AuditLog(audit_file(context.log_folder), context.keys.run_id, context.name)
        rules = context.keys.access
        hosts = KnownHosts([settings.host, *rules.hosts], any_address=not is_loopback(settings.host))
        self.__access = Access(hosts, command="ng_run", other_users=rules.other_users)
        self.__metrics = ServerMetrics()
        self.__errors = ErrorResponses(self.name, self.__metrics)
        self.__metrics.gauge("rollyard_in_flight", "Requests in flight", lambda: self.in_flight)
        self.__metrics.gauge("rollyard_sessions", "Open sessions", lambda: self.sessions)
        self.app = self.__make_app()

    @property
    def sessions(self) -> int:
        """Number of open sessions. Servers with sessions override this."""
        return 0

    @property
    def phase(self) -> str:
        """What `start` is doing, for status output. Servers whose start takes minutes override this."""
        return ""

    async def start(self) -> None:
        """Prepare to serve: load, connect, warm up. An exception ends the process, and its message is logged."""

    async def stop(self) -> None:
        """Release all resources."""

    async def check(self) -> None:
        """Raise OperatorError or RunError if a problem would make `start` fail. Must leave nothing running."""

    async def advice(self) -> list[str]:
        """Return warnings about problems that do not prevent `start`, such as an unresponsive endpoint."""
        return []

    def route(self, path: str, handler: Handler, *, cancellable: bool = False, shape: Shape = ANY) -> None:
        """Serve POST requests to `path` with a handler that takes and returns bytes.

        `cancellable` handlers are cancelled when the caller disconnects. This takes 15 us per request, so use it only
        for long-running work. `shape` describes it in /openapi.json.
        """
        self.__documented[path] = Documented(path, _text_of(handler), shape)
        handler = self.__traced(path, handler) if self.__traced else handler
        self.__routes[path] = _Route(path, handler, cancellable, self.__metrics.route(path))

    def route_rest(
        self, handler: Handler, *, cancellable: bool = False, shapes: Mapping[str, Shape] | None = None
    ) -> None:
        """Serve all POST requests whose path has no route. By default, these requests get status 404.

        `shapes` describes the paths for which it is meant in /openapi.json; `{name}` stands for any segment.
        """
        for path, shape in (shapes or {}).items():
            self.__documented[path] = Documented(path, _text_of(handler), shape)
        handler = self.__traced(REST, handler) if self.__traced else handler
        self.__rest = _Route(REST, handler, cancellable, self.__metrics.route(REST))

    def audit(self, *paths: str) -> None:
        """Write a line to the run's audit log for each request to these hot routes, because it changes the run, unless
        the handler sets its `is_act` to False. They are then served over ASGI, which knows the caller.
        """
        for path in paths:
            self.__routes[path].audited = True

    def allow_play(self, *paths: str) -> None:
        """Let callers with the play token use these routes. All others belong to the control plane."""
        self.__play.update(paths)

    def is_in_control(self, authorization: str | None) -> bool:
        """Return whether a caller has the run token, and not only the play token. Without tokens, all callers have."""
        return not self.__token or self.has_run_token((authorization or "").encode("latin-1"))

    def has_run_token(self, authorization: bytes) -> bool:
        """Return whether a caller has proved that it belongs to the run. Without tokens, none can."""
        return bool(self.__token) and hmac.compare_digest(authorization, self.__token)

    def format_errors(self, path: str, convert: Callable[[RawResponse], RawResponse]) -> None:
        """Convert the error responses of `path`, for APIs whose clients expect their own format."""
        self.__error_formats[path] = convert

    def requests_to(self, path: str) -> RouteMetrics:
        """Return the counts of the requests to a route, which continue to grow."""
        return self.__metrics.route(path)

    def measure(self, source: MetricSource) -> None:
        """Add the metrics of `source` to this server's /metrics."""
        self.__metrics.add(source)

    def metric_families(self) -> Iterable[Metric]:
        """Return what /metrics shows."""
        return self.__metrics.registry.collect()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what the other two ways into a server do not: routes of `app`, and POSTs that need all of ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        call = RawRequest(scope["path"], dict(scope["headers"]), b"", scope.get("query_string", b""))
        route = self.__route_of(call.path) if scope["method"] == "POST" else None
        rejection = self.__rejection(scope["method"], call.path, call.headers, scope)
        if rejection and not _is_probe(scope, rejection):
            await self.__send(await self.__reject(call.path, rejection), partial(_send_asgi, send))
        elif route is not None:
            await self.__serve(route, call, receive, send, scope)
        else:
            self.requests += 1
            self.in_flight += 1
            try:
                await self.__serve_app(scope, receive, send)
            finally:
                self.in_flight -= 1

    def is_cancellable(self, path: str) -> bool | None:
        """Return whether a POST ends if its caller disconnects; None if its path has no hot route."""
        route = self.__route_of(path)
        return None if route is None or route.audited else route.cancellable

    def admits(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request from outside this process may be served; `__call__` rejects any other."""
        return self.__rejection(scope["method"], scope["path"], headers, scope) is None

    async def serve_hot(self, call: RawRequest, send: SendResponse) -> None:
        """Respond to a POST to a hot route from another process."""
        route = self.__route_of(call.path)
        assert route is not None
        await self.__exchange(route, call, send)

    async def answer_hot(self, call: RawRequest) -> tuple[Headers, RawResponse] | None:
        """Return the response to a POST to a hot route, which may reject it, and all its headers; None without a route.

        What a stream takes is not counted.
        """
        if (answering := self.__answer(call)) is None:
            return None
        response = await answering
        return self.__headers(response), response

    async def answer_locally(self, path: str, body: bytes, headers: Mapping[str, str]) -> HttpResponse | None:
        """Respond to a POST from this process. Returns None if the path has no hot route."""
        path, _, query = path.partition("?")
        given = (headers if isinstance(headers, SentHeaders) else SentHeaders(headers)).received
        if (answering := self.__answer(RawRequest(path, given, body, query.encode()))) is None:
            return None
        response = await answering
        received, cookies = _as_received(response.content_type, self.run_header, response.headers)
        whole = response.body if response.stream is None else await joined(response.stream)
        return HttpResponse(response.status, received, whole, cookies)

    def __answer(self, call: RawRequest) -> Awaitable[RawResponse] | None:
        route = self.__route_of(call.path)
        if route is None or route.audited:
            return None
        rejection = self.__rejection("POST", call.path, call.headers)
        return self.__exchange(route, call) if rejection is None else self.__reject(call.path, rejection)

    def __route_of(self, path: str) -> _Route | None:
        if (route := self.__routes.get(path)) is not None:
            return route
        if not path.startswith(ROLLOUT_PREFIX):
            return self.__rest
        inner = self.__routes.get(_without_prefix(path), self.__rest)
        return inner and replace(inner, handler=partial(_serve_without_prefix, inner.handler))

    async def __exchange(
        self,
        route: _Route,
        call: RawRequest,
        send: SendResponse | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> RawResponse:
        """Call `prepare`, which completes the request, and the handler; send the response if it is not only returned,
        and count the request.
        """
        self.requests += 1
        self.in_flight += 1
        started, status = time.perf_counter(), 499
        try:
            try:
                if prepare is not None:
                    await prepare()
                answer = await route.handler(call)
                response = RawResponse(answer) if isinstance(answer, bytes) else answer
            except Failure as failure:
                response = self.__errors.failed(failure, call.path)
            except (Exception, *PLUGIN_EXITS) as error:
                response = self.__errors.raised(error, call.path)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                response = self.__errors.raised(error, call.path)  # the handler awaited something that was cancelled
            if response.status >= 400:
                response = self.__formatted(route.path, response)
            if send is not None:
                await self.__send(response, send)
            status = response.status
            return response
        except Exception:
            status = 500
            raise
        finally:
            route.metrics.observe(status, time.perf_counter() - started)
            self.in_flight -= 1

    def __send(self, response: RawResponse, send: SendResponse) -> Awaitable[None]:
        return send(response.status, self.__headers(response), response)

    def __headers(self, response: RawResponse) -> Headers:
        return [(b"content-type", response.content_type), self.run_header, *response.headers]

    async def __reject(self, path: str, rejection: Failure) -> RawResponse:
        self.requests += 1
        response = self.__formatted(_without_prefix(path), self.__errors.failed(rejection, path))
        self.__metrics.route("refused").observe(response.status, 0.0)
        return response

    def __rejection(
        self, method: str, path: str, headers: Mapping[bytes, bytes], scope: Scope | None = None
    ) -> Failure | None:
        """Return the reason to reject a request: it is for another run or server, comes before the server has started,
        or lacks the token of its plane.

        A server without a token lets `Access` decide about a request from outside this process, which has a `scope`.
        """
        if scope is not None and not self.__token and (failure := self.__access.refusal(scope)):
            return failure
        if (run_id := headers.get(b"x-rollyard-run", self.run_header[1])) != self.run_header[1]:
            detail = f"this is run {self.context.keys.run_id}, not {run_id.decode('latin-1')!r}"
            return Failure(FailureKind.WRONG_RUN, detail)
        if (server := headers.get(b"x-rollyard-to", self.__own_name)) != self.__own_name:
            return Failure(FailureKind.WRONG_RUN, f"this is {self.name!r}, not {server.decode('latin-1')!r}")
        if self.starting and method == "POST":
            return Failure(FailureKind.WRONG_RUN, f"{self.name} is starting: ask the head where a ready instance is")
        if not self.__token or hmac.compare_digest(given := headers.get(b"authorization", b""), self.__token):
            return None
        if not self.__play_token or not hmac.compare_digest(given, self.__play_token):
            detail = "the run token is missing or wrong; expected Authorization: Bearer <token>"
            return Failure(FailureKind.UNAUTHORIZED, detail)
        if self.__route_path(method, path) in self.__play:
            return None
        found = f"{method} {path[:200]} belongs to the control plane, and this is the play token"
        return Failure(FailureKind.FORBIDDEN, f"{found}; expected the run token")

    def __route_path(self, method: str, path: str) -> str:
        """Return the path with which the route of a request was declared; empty without one."""
        if method == "POST" and (route := self.__route_of(path)) is not None:
            return route.path
        scope = {"type": "http", "method": method, "path": path, "headers": []}
        found = (route for route in self.app.routes if route.matches(scope)[0] is Match.FULL)
        return getattr(next(found, None), "path", "")

    async def __serve(self, route: _Route, call: RawRequest, receive: Receive, send: Send, scope: Scope) -> None:
        """Serve a POST over ASGI. The end of its connection, if it has one, cancels the handler or stream."""
        watcher: asyncio.Task[None] | None = None
        status = 499
        disconnected: list[bool] = []

        def watch() -> None:
            nonlocal watcher
            task = asyncio.current_task()
            assert task is not None
            watcher = watcher or asyncio.create_task(cancel_on_disconnect(receive, task, disconnected))

        async def respond(status: int, headers: Headers, response: RawResponse) -> None:
            if response.stream is not None:
                watch()
            await _send_asgi(send, status, headers, response)

        async def prepare() -> None:
            call.body = await read_body(receive)
            if route.cancellable and scope.get("client") is not None:
                watch()

        try:
            status = (await self.__exchange(route, call, respond, prepare)).status
        except asyncio.CancelledError:
            if not disconnected:
                raise
        finally:
            if watcher is not None:
                watcher.cancel()
            if route.audited and call.is_act and status not in (401, 403):
                origin = origin_of(scope, has_token=bool(self.__token))
                detail = _act_detail(call) if call.act_detail is None else call.act_detail
                self.__audit.write(f"POST {route.path}", origin, detail, status)

    def __formatted(self, path: str, error: RawResponse) -> RawResponse:
        convert = self.__error_formats.get(path)
        return error if convert is None else convert(error)

    async def __serve_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        complete, status, started = False, 499, time.perf_counter()

        async def send_with_run_header(message: Any) -> None:
            nonlocal complete, status
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], self.run_header]
                status = message["status"]
            complete = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            await self.app(scope, receive, send_with_run_header)
        except PLUGIN_EXITS as error:
            if status != 499:
                raise RuntimeError(described(error)) from error
            await self.__send(self.__errors.raised(error, scope["path"]), partial(_send_asgi, send))
            status = 500
        except Exception:
            if not complete:  # Starlette re-raises exceptions that ErrorResponses has logged and responded to
                raise
        finally:
            # Unknown paths share one metric series, because callers could otherwise create any number of them.
            path = getattr(scope.get("route"), "path", "other")
            self.__metrics.route(path).observe(status, time.perf_counter() - started)

    def __make_app(self) -> FastAPI:
        # FastAPI's pages would run scripts of other hosts with the rights of the server's own page.
        app = FastAPI(title=self.name, docs_url=None, redoc_url=None, responses=PROBLEMS)
        self.__errors.handle_exceptions(app, lambda: self.__routes)
        document(app, self.__documented.values)

        # Without response models: to analyse them takes FastAPI a third of the time in which a server object is made.
        @app.get("/health", response_model=None)
        async def health() -> Json:
            """Report that the event loop is responsive."""
            return {"status": "ok", "server": self.name, "run_id": self.context.keys.run_id}

        @app.get("/ready", response_model=None, responses={503: {"description": "It is starting"}})
        async def ready() -> JSONResponse:
            """Return status 200 once `start` has finished, 503 before."""
            return JSONResponse({"ready": self.ready}, status_code=200 if self.ready else 503)

        @app.get("/metrics", response_class=PlainTextResponse)
        async def metrics() -> Response:
            """Return the metrics in Prometheus' text format."""
            return Response(self.__metrics.text(), media_type=CONTENT_TYPE)

        return app


@dataclass(slots=True)
class _Route:
    path: str
    handler: Handler
    cancellable: bool
    metrics: RouteMetrics
    audited: bool = False


def audit_file(logs: Path | None) -> Path | None:
    """Return the path of the audit log of a run with this folder of logs."""
    return logs and logs / "audit.jsonl"


_AUDITED_BODY_BYTES, _AUDITED_VALUES, _AUDITED_CHARS = 64 << 10, 32, 400
"""What an audit line shows of a request: the first plain values of a body of at most so many bytes. A longer text is
not searched for secrets, which takes time, and part of it could show one: only its length is in the line.
"""


def _act_detail(call: RawRequest) -> Json:
    """Return the parameters of a request that are plain values, without secrets."""
    given: Any = None
    with contextlib.suppress(orjson.JSONDecodeError):
        given = orjson.loads(call.body) if len(call.body) <= _AUDITED_BODY_BYTES else None
    named = {**dict(parse_qsl(call.query.decode("latin-1"))), **(given if isinstance(given, dict) else {})}
    plain = {
        name: f"({len(value)} characters)" if isinstance(value, str) and len(value) > _AUDITED_CHARS else value
        for name, value in named.items()
        if isinstance(value, str | int | float | bool)
    }
    return {name[:_AUDITED_CHARS]: value for name, value in islice(redacted(plain).items(), _AUDITED_VALUES)}


def _play_header(token: str | None) -> bytes:
    try:
        return f"Bearer {play_token(token or '')}".encode()
    except ValueError:  # too short
        return b""


def _text_of(handler: Handler) -> str:
    return inspect.cleandoc(handler.__doc__ or "")


def _is_probe(scope: Scope, rejection: Failure) -> bool:
    """Whether a request lacks only the token and asks for one bit, as the probes of Kubernetes do."""
    is_ready = scope["method"] == "GET" and scope["path"] == "/ready"
    return is_ready and rejection.kind is FailureKind.UNAUTHORIZED


def _without_prefix(path: str) -> str:
    """Return the path without `/ng-rollout/<id>`, with which NeMo Gym names the rollout that a call belongs to."""
    if not path.startswith(ROLLOUT_PREFIX):
        return path
    _, _, rest = path.removeprefix(ROLLOUT_PREFIX).partition("/")
    return f"/{rest.removeprefix(TOKEN_CAPTURE)}"


async def _serve_without_prefix(handler: Handler, call: RawRequest) -> bytes | RawResponse:
    return await handler(RawRequest(_without_prefix(call.path), call.headers, call.body, call.query))


@lru_cache(maxsize=1024)
def _as_received(
    content_type: bytes, run_header: tuple[bytes, bytes], others: tuple[tuple[bytes, bytes], ...]
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the headers and the cookies of a response as a caller in this process receives them."""
    headers = ((b"content-type", content_type), run_header, *others)
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return dict(pairs), tuple(value for name, value in pairs if name == "set-cookie")


async def _send_asgi(send: Send, status: int, headers: Headers, response: RawResponse) -> None:
    if response.stream is None:
        headers = [*headers, (b"content-length", b"%d" % len(response.body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if response.stream is not None:
        async with contextlib.aclosing(response.stream) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": response.body})


CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST


class MetricSource(Protocol):
    """A source of metrics that are computed at each scrape."""

    def collect(self) -> Iterable[Metric]: ...


class RouteMetrics:
    """Counts the requests of one route, in a tenth of the time that a prometheus histogram and counter take."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BUCKETS) + 1)
        """Number of requests with a latency up to each bound, but above the one before."""
        self.total_s = 0.0
        self.statuses: Counter[int] = Counter()

    def observe(self, status: int, seconds: float) -> None:
        self.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        self.total_s += seconds
        self.statuses[status] += 1


class ServerMetrics:
    """A server's Prometheus registry, which includes the process's CPU, memory and open files."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self._failures = prometheus.Counter(
            "rollyard_failures", "Failed requests by failure kind", ["kind", "began"], registry=self.registry
        )
        self._routes: defaultdict[str, RouteMetrics] = defaultdict(RouteMetrics)
        prometheus.ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def route(self, path: str) -> RouteMetrics:
        return self._routes[path]

    def collect(self) -> Iterable[Metric]:
        latency = HistogramMetricFamily("rollyard_request_seconds", "Request latency", labels=["route"])
        statuses = CounterMetricFamily("rollyard_requests", "Requests by route and status", labels=["route", "status"])
        for path, route in self._routes.items():
            bounds = [*map(str, LATENCY_BUCKETS), "+Inf"]
            latency.add_metric([path], list(zip(bounds, accumulate(route.buckets), strict=True)), route.total_s)
            for status, count in route.statuses.items():
                statuses.add_metric([path, str(status)], count)
        yield from (latency, statuses)

    def failure(self, kind: str, *, here: bool) -> None:
        """Count a failed request. `here`: the failure originated at this server and was not passed on from another."""
        self._failures.labels(kind, "here" if here else "elsewhere").inc()

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a gauge that calls `read` at each scrape."""
        prometheus.Gauge(name, help_text, registry=self.registry).set_function(read)

    def add(self, source: MetricSource) -> None:
        self.registry.register(source)

    def text(self) -> bytes:
        return prometheus.generate_latest(self.registry)


class ErrorResponses:
    """Creates the problem responses of one server and counts its failures."""

    def __init__(self, name: str, metrics: ServerMetrics) -> None:
        self._name = name
        self._metrics = metrics

    def failed(self, failure: Failure, path: str) -> RawResponse:
        """Count the failure and return it as a problem response."""
        problem = to_problem(failure, self._name, path)
        self._metrics.failure(failure.kind, here=problem.server == self._name)
        return problem_response(problem)

    def raised(self, error: BaseException, path: str) -> RawResponse:
        log.error("%s%s failed", self._name, path, exc_info=error)
        detail = f"{described(error)} (traceback in the log of {self._name})"
        return self.failed(Failure(FailureKind.SERVER_ERROR, detail), path)

    def handle_exceptions(self, app: FastAPI, paths: Callable[[], Collection[str]]) -> None:
        """Make `app` respond to exceptions with problems. `paths` returns the POST routes to list in a 404 response."""

        async def on_failure(request: Request, error: Exception) -> Response:
            assert isinstance(error, Failure)
            return _response(self.failed(error, request.url.path))

        async def on_exception(request: Request, error: Exception) -> Response:
            return _response(self.raised(error, request.url.path))

        async def on_invalid_request(request: Request, error: Exception) -> Response:
            assert isinstance(error, RequestValidationError)
            return await on_failure(request, Failure(FailureKind.BAD_REQUEST, wrong_fields(error.errors())))

        async def on_http_exception(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)
            status, headers, detail = error.status_code, error.headers or {}, str(error.detail)
            if status == 404 and request.url.path in paths():
                status, headers, detail = 405, {"Allow": "POST"}, "Method Not Allowed"
            detail += f": {request.method} {request.url.path}"
            if status == 404:
                detail += f" (available POST routes: {', '.join(sorted(paths()))})"
            elif "Allow" in headers:
                detail += f" (expected {headers['Allow']})"
            response = await on_failure(request, Failure(FailureKind.BAD_REQUEST, detail, status=status))
            response.headers.update(headers)
            return response

        app.add_exception_handler(Failure, on_failure)
        app.add_exception_handler(HTTPException, on_http_exception)
        app.add_exception_handler(RequestValidationError, on_invalid_request)
        app.add_exception_handler(Exception, on_exception)


def described(error: BaseException) -> str:
    """Return the type and message of any exception, also of one whose message cannot be printed."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as unprintable:
        return f"{type(error).__name__} (its message cannot be printed: {type(unprintable).__name__})"


def _response(response: RawResponse) -> Response:
    headers = {name.decode(): value.decode() for name, value in response.headers}
    return Response(response.body, response.status, headers, response.content_type.decode())


FAILURE_CLASS = "_ng_failure_class"
FAILURE_TERMINAL = "_ng_failure_terminal"
FAILURE = "_ng_failure"
"""Key of the problem document in the row."""


def with_failure_rows(handler: Handler, server: str) -> Handler:
    """Return the handler with its failures converted to rows. `server` is the name of the server that it belongs to."""

    async def handle(call: RawRequest) -> bytes | RawResponse:
        try:
            return await handler(call)
        except Exception as error:
            if call.header(RUN_HEADER.encode()) is not None:
                raise
            if not isinstance(error, Failure):
                log.exception("%s%s failed", server, call.path)
                detail = f"{type(error).__name__}: {error} (traceback in the log of {server})"
                error = Failure(FailureKind.SERVER_ERROR, detail)
            return failure_row(call, error, server)

    handle.__doc__ = handler.__doc__
    return handle


def failure_row(call: RawRequest, failure: Failure, server: str) -> bytes:
    """Return the row of a failed request: its fields, and what failed. Raises `failure` if it contains no row."""
    try:
        row: Json = call.json()
    except Failure:
        raise failure from None
    row.pop("reward", None)
    problem = to_problem(failure, server, call.path).model_dump(mode="json")
    marks = {FAILURE_CLASS: str(failure.kind), FAILURE_TERMINAL: failure.terminal, FAILURE: problem}
    marks |= {"failure_kind": name_of(failure.kind), "failure_reason": failure.problem.detail}
    return orjson.dumps({**row, **marks})
