"""Server: a named FastAPI app with start and stop hooks, health checks, metrics and central error handling.

There are two kinds of routes. `self.app` is an ordinary FastAPI app for routes that are rarely called. `self.route`
adds hot routes, whose handlers take and return bytes; this saves about 60 us of CPU time per request
(benchmarks/turns.py measures the total). /openapi.json documents both.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import Keys
from rollyard.records.types import Json
from rollyard.services.http.access.hosts import KnownHosts, is_loopback
from rollyard.services.http.access.request_checks import Access
from rollyard.services.http.client import RUN_HEADER, ServerClient
from rollyard.services.http.request import Handler, RawRequest, RawResponse, cancel_on_disconnect, read_body
from rollyard.services.http.transport import Receive, Scope, Send, Transport
from rollyard.services.server.error_responses import ErrorResponses, described
from rollyard.services.server.metrics import CONTENT_TYPE, MetricSource, RouteMetrics, ServerMetrics
from rollyard.services.server.openapi import document
from rollyard.services.server.settings import ServerSettings

PLUGIN_EXITS = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""What the code of a plug-in may raise besides an Exception. In a task, it would end the server, or the connection
without a response."""


@dataclass(slots=True)
class _Route:
    path: str
    handler: Handler
    cancellable: bool
    metrics: RouteMetrics


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
        self.requests = 0
        self.in_flight = 0
        self.__routes: dict[str, _Route] = {}
        self.__rest: _Route | None = None
        self.__error_formats: dict[str, Callable[[RawResponse], RawResponse]] = {}
        self.__run_header = (RUN_HEADER.encode(), context.keys.run_id.encode())
        self.__own_name = context.name.encode()
        self.__token = context.keys.token
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

    def route(self, path: str, handler: Handler, *, cancellable: bool = False) -> None:
        """Serve POST requests to `path` with a handler that takes and returns bytes.

        `cancellable` handlers are cancelled when the caller disconnects. This takes 15 us per request, so use it only
        for long-running work.
        """
        self.__routes[path] = _Route(path, handler, cancellable, self.__metrics.route(path))

    def route_rest(self, handler: Handler) -> None:
        """Serve all POST requests whose path has no route. By default, these requests get status 404."""
        self.__rest = _Route("other", handler, False, self.__metrics.route("other"))

    def format_errors(self, path: str, convert: Callable[[RawResponse], RawResponse]) -> None:
        """Convert the error responses of `path`, for APIs whose clients expect their own format."""
        self.__error_formats[path] = convert

    def measure(self, source: MetricSource) -> None:
        """Add the metrics of `source` to this server's /metrics."""
        self.__metrics.add(source)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.requests += 1
        self.in_flight += 1
        try:
            if rejection := self.__rejection(scope):
                self.__metrics.route("refused").observe(rejection.status, 0.0)
                await self.__send(send, self.__formatted(scope["path"], rejection))
            elif scope["method"] == "POST" and (route := self.__routes.get(scope["path"], self.__rest)):
                await self.__serve(route, scope, receive, send)
            else:
                await self.__serve_app(scope, receive, send)
        finally:
            self.in_flight -= 1

    def __rejection(self, scope: Scope) -> RawResponse | None:
        """Return the error response to a request that is not allowed: from a different run, or without the token.

        If the run has no token, `Access` decides.
        """
        if not self.__token and (failure := self.__access.refusal(scope)):
            return self.__errors.failed(failure, scope["path"])
        authorization = b""
        for name, value in scope["headers"]:
            if name == b"x-rollyard-run" and value != self.__run_header[1]:
                run_id = value.decode("latin-1")
                detail = f"this is run {self.context.keys.run_id}, not {run_id!r}"
                return self.__errors.failed(Failure(FailureKind.WRONG_RUN, detail), scope["path"])
            if name == b"x-rollyard-to" and value != self.__own_name:
                detail = f"this is {self.name!r}, not {value.decode('latin-1')!r}"
                return self.__errors.failed(Failure(FailureKind.WRONG_RUN, detail), scope["path"])
            if name == b"authorization":
                authorization = value
        if self.__token and not hmac.compare_digest(authorization, b"Bearer " + self.__token.encode()):
            failure = Failure(
                FailureKind.UNAUTHORIZED, "the run token is missing or wrong; expected Authorization: Bearer <token>"
            )
            return self.__errors.failed(failure, scope["path"])
        return None

    async def __serve(self, route: _Route, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 499
        watchers: list[asyncio.Task[None]] = []
        disconnected: list[bool] = []
        try:
            response = await self.__respond(
                route, scope, receive, lambda: watchers.append(_watch(receive, disconnected))
            )
            if response.status >= 400:
                response = self.__formatted(route.path, response)
            if response.stream is not None and not watchers:
                watchers.append(_watch(receive, disconnected))
            await self.__send(send, response)
            status = response.status
        except asyncio.CancelledError:
            if not disconnected:
                raise
        except Exception:
            status = 500
            raise
        finally:
            route.metrics.observe(status, time.perf_counter() - started)
            for watcher in watchers:
                watcher.cancel()

    async def __respond(self, route: _Route, scope: Scope, receive: Receive, watch: Callable[[], None]) -> RawResponse:
        try:
            call = RawRequest(scope["path"], scope["headers"], await read_body(receive), scope.get("query_string", b""))
            # If all servers share one process, the caller's task is this one, and cancelling it needs no watcher.
            if route.cancellable and scope.get("client") is not None:
                watch()
            response = await route.handler(call)
            return RawResponse(response) if isinstance(response, bytes) else response
        except Failure as failure:
            return self.__errors.failed(failure, scope["path"])
        except (Exception, *PLUGIN_EXITS) as error:
            return self.__errors.raised(error, scope["path"])
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self.__errors.raised(error, scope["path"])  # the handler awaited something that was cancelled

    def __formatted(self, path: str, error: RawResponse) -> RawResponse:
        convert = self.__error_formats.get(path)
        return error if convert is None else convert(error)

    async def __send(self, send: Send, response: RawResponse) -> None:
        headers = [(b"content-type", response.content_type), self.__run_header, *response.headers]
        if response.stream is None:
            headers.append((b"content-length", b"%d" % len(response.body)))
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            await send({"type": "http.response.body", "body": response.body})
            return
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        async with contextlib.aclosing(response.stream) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def __serve_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        complete, status, started = False, 499, time.perf_counter()

        async def send_with_run_header(message: Any) -> None:
            nonlocal complete, status
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], self.__run_header]
                status = message["status"]
            complete = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            await self.app(scope, receive, send_with_run_header)
        except PLUGIN_EXITS as error:
            if status != 499:
                raise RuntimeError(described(error)) from error
            await self.__send(send, self.__errors.raised(error, scope["path"]))
            status = 500
        except Exception:
            if not complete:  # Starlette re-raises exceptions that ErrorResponses has logged and responded to
                raise
        finally:
            # Unknown paths share one metric series, because callers could otherwise create any number of them.
            path = getattr(scope.get("route"), "path", "other")
            self.__metrics.route(path).observe(status, time.perf_counter() - started)

    def __make_app(self) -> FastAPI:
        app = FastAPI(title=self.name, docs_url="/docs", redoc_url=None)
        self.__errors.handle_exceptions(app, lambda: self.__routes)
        document(app, lambda: {route.path: route.handler for route in self.__routes.values()})

        # Without response models: to analyse them takes FastAPI a third of the time in which a server object is made.
        @app.get("/health", response_model=None)
        async def health() -> Json:
            """Report that the event loop is responsive."""
            return {"status": "ok", "server": self.name, "run_id": self.context.keys.run_id}

        @app.get("/ready", response_model=None)
        async def ready() -> JSONResponse:
            """Return status 200 once `start` has finished, 503 before."""
            return JSONResponse({"ready": self.ready}, status_code=200 if self.ready else 503)

        @app.get("/metrics", response_model=None)
        async def metrics() -> Response:
            """Return the metrics in Prometheus' text format."""
            return Response(self.__metrics.text(), media_type=CONTENT_TYPE)

        return app


def _watch(receive: Receive, disconnected: list[bool]) -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return asyncio.create_task(cancel_on_disconnect(receive, task, disconnected))
