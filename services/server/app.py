"""Server: a FastAPI app with a name. Start and stop, health, metrics, and the one boundary where errors become answers.

Two kinds of routes: `self.app` is an ordinary FastAPI app for whatever is not hot; `self.route` serves the hot paths
from bytes to bytes, which saves some 60 us of CPU a request (benchmarks/turns.py shows the sum). Both kinds stand in
/openapi.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.access.hosts import KnownHosts, is_loopback
from rollyard.services.http.access.request_checks import Access
from rollyard.services.http.client import RUN_HEADER, ServerClient
from rollyard.services.http.problem import named, problem_reply
from rollyard.services.http.request import Handler, RawRequest, RawResponse, cancel_on_disconnect, read_body
from rollyard.services.http.transport import Receive, Scope, Send, Transport
from rollyard.services.server.metrics import CONTENT_TYPE, MetricSource, RouteMetrics, ServerMetrics
from rollyard.services.server.openapi import document
from rollyard.services.server.settings import ServerSettings
from rollyard.services.types import Json, Keys

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Route:
    path: str
    handler: Handler
    cancellable: bool
    meter: RouteMetrics


@dataclass(frozen=True)
class Context:
    """What a server is given besides its settings."""

    name: str
    """The name by which others call it."""
    keys: Keys
    client: ServerClient
    log_folder: Path | None = None
    """Where the run's logs are."""
    endpoints: Transport | None = None
    """Towards engines and hosted APIs, behind proxies where the environment names some."""
    instance: str = ""
    """Unique name of this process in the run's directory; empty where all servers share one process."""

    @property
    def beyond(self) -> Transport:
        """The transport for addresses that are not the run's; in a process without one of its own, the client's."""
        return self.endpoints or self.client.transport


class Server:
    """A named server. Subclasses add routes in `__init__` and may override `start` and `stop`.

    Its own names are mangled (`__answer`): what a subclass keeps under any name of its choice takes nothing away.
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
        self.__run_header = (RUN_HEADER.encode(), context.keys.run_id.encode())
        self.__own_name = context.name.encode()
        self.__token = context.keys.token
        rules = context.keys.access
        hosts = KnownHosts([settings.host, *rules.hosts], any_address=not is_loopback(settings.host))
        self.__access = Access(hosts, command="ng_run", other_users=rules.other_users)
        self.__meters = ServerMetrics()
        self.__meters.gauge("rollyard_in_flight", "Requests being answered", lambda: self.in_flight)
        self.__meters.gauge("rollyard_sessions", "Open sessions", lambda: self.sessions)
        self.app = self.__make_app()

    @property
    def sessions(self) -> int:
        """Open sessions; servers that keep some override this."""
        return 0

    @property
    def phase(self) -> str:
        """What `start` is doing, for those who wait; servers whose start takes minutes override this."""
        return ""

    async def start(self) -> None:
        """Get ready to serve: load, connect, warm up. Raising ends the process with the message in its log."""

    async def stop(self) -> None:
        """Give everything back."""

    async def check(self) -> None:
        """Find what would stop `start`, and leave nothing running. Raises OperatorError, RunError."""

    async def advice(self) -> list[str]:
        """What would fail later although `start` works, a sentence each: an endpoint that does not answer."""
        return []

    def route(self, path: str, handler: Handler, *, cancellable: bool = False) -> None:
        """Serve POST `path` from bytes to bytes.

        `cancellable` handlers are cancelled when the caller hangs up; worth its 15 us where the work is long.
        """
        self.__routes[path] = _Route(path, handler, cancellable, self.__meters.route(path))

    def route_rest(self, handler: Handler) -> None:
        """Serve every POST to a path that is no route; without it they are 404."""
        self.__rest = _Route("other", handler, False, self.__meters.route("other"))

    def measure(self, measured: MetricSource) -> None:
        """Show numbers that `measured` keeps in this server's /metrics."""
        self.__meters.add(measured)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI door."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.requests += 1
        self.in_flight += 1
        try:
            if refusal := self.__refusal(scope):
                self.__meters.route("refused").observe(refusal.status, 0.0)
                await self.__send(send, refusal)
            elif scope["method"] == "POST" and (route := self.__routes.get(scope["path"], self.__rest)):
                await self.__serve(route, scope, receive, send)
            else:
                await self.__serve_app(scope, receive, send)
        finally:
            self.in_flight -= 1

    def __refusal(self, scope: Scope) -> RawResponse | None:
        """A caller of another run gets no further, nor one without the token; where there is none, see `Access`."""
        if not self.__token and (failure := self.__access.refusal(scope)):
            return self.__failed(failure, scope["path"])
        authorization = b""
        for name, value in scope["headers"]:
            if name == b"x-rollyard-run" and value != self.__run_header[1]:
                asked = value.decode("latin-1")
                told = f"this is run {self.context.keys.run_id}, not {asked!r}"
                return self.__failed(Failure(FailureKind.WRONG_RUN, told), scope["path"])
            if name == b"x-rollyard-to" and value != self.__own_name:
                told = f"this is {self.name!r}, not {value.decode('latin-1')!r}"
                return self.__failed(Failure(FailureKind.WRONG_RUN, told), scope["path"])
            if name == b"authorization":
                authorization = value
        if self.__token and not hmac.compare_digest(authorization, b"Bearer " + self.__token.encode()):
            failure = Failure(FailureKind.UNAUTHORIZED, "the run token is missing or wrong (Authorization: Bearer ...)")
            return self.__failed(failure, scope["path"])
        return None

    async def __serve(self, route: _Route, scope: Scope, receive: Receive, send: Send) -> None:
        begun, status = time.perf_counter(), 499
        watchers: list[asyncio.Task[None]] = []
        hung_up: list[bool] = []
        try:
            reply = await self.__answer(route, scope, receive, lambda: watchers.append(_watch(receive, hung_up)))
            if reply.stream is not None and not watchers:
                watchers.append(_watch(receive, hung_up))
            await self.__send(send, reply)
            status = reply.status
        except asyncio.CancelledError:
            if not hung_up:
                raise
        except Exception:
            status = 500
            raise
        finally:
            route.meter.observe(status, time.perf_counter() - begun)
            for watcher in watchers:
                watcher.cancel()

    async def __answer(self, route: _Route, scope: Scope, receive: Receive, watch: Callable[[], None]) -> RawResponse:
        try:
            call = RawRequest(scope["path"], scope["headers"], await read_body(receive), scope.get("query_string", b""))
            # In one process the caller's task is this one: cancelling it needs no watcher.
            if route.cancellable and scope.get("client") is not None:
                watch()
            reply = await route.handler(call)
            return RawResponse(reply) if isinstance(reply, bytes) else reply
        except Failure as failure:
            return self.__failed(failure, scope["path"])
        except Exception as error:
            return self.__raised(error, scope["path"])

    def __raised(self, error: Exception, path: str) -> RawResponse:
        log.error("%s%s failed", self.name, path, exc_info=error)
        detail = f"{type(error).__name__}: {error} (traceback in the log of {self.name})"
        return self.__failed(Failure(FailureKind.SERVER_ERROR, detail), path)

    def __failed(self, failure: Failure, path: str) -> RawResponse:
        problem = named(failure, self.name, path)
        self.__meters.failure(failure.kind, here=problem.server == self.name)
        return problem_reply(problem)

    async def __send(self, send: Send, reply: RawResponse) -> None:
        headers = [(b"content-type", reply.content_type), self.__run_header, *reply.headers]
        if reply.stream is None:
            headers.append((b"content-length", b"%d" % len(reply.body)))
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send({"type": "http.response.body", "body": reply.body})
            return
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        async with contextlib.aclosing(reply.stream) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def __serve_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole, status, begun = False, 499, time.perf_counter()

        async def marked(message: Any) -> None:
            nonlocal whole, status
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], self.__run_header]
                status = message["status"]
            whole = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            await self.app(scope, receive, marked)
        except Exception:
            if not whole:  # Starlette raises again what `_on_exception` has answered and logged
                raise
        finally:
            # A path that is no route is not a name for a series: anybody could make as many as he likes.
            path = getattr(scope.get("route"), "path", "other")
            self.__meters.route(path).observe(status, time.perf_counter() - begun)

    def __make_app(self) -> FastAPI:
        app = FastAPI(title=self.name, docs_url="/docs", redoc_url=None)
        app.add_exception_handler(Failure, self.__on_failure)
        app.add_exception_handler(HTTPException, self.__on_http_exception)
        app.add_exception_handler(RequestValidationError, self.__on_invalid_request)
        app.add_exception_handler(Exception, self.__on_exception)
        document(app, lambda: {route.path: route.handler for route in self.__routes.values()})

        @app.get("/health")
        async def health() -> Json:
            """Alive: the event loop answers."""
            return {"status": "ok", "server": self.name, "run_id": self.context.keys.run_id}

        @app.get("/ready")
        async def ready() -> JSONResponse:
            """200 once `start` is done, 503 before."""
            return JSONResponse({"ready": self.ready}, status_code=200 if self.ready else 503)

        @app.get("/metrics")
        async def metrics() -> Response:
            """Prometheus text format."""
            return Response(self.__meters.text(), media_type=CONTENT_TYPE)

        return app

    async def __on_failure(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Failure)
        return _response(self.__failed(error, request.url.path))

    async def __on_exception(self, request: Request, error: Exception) -> Response:
        return _response(self.__raised(error, request.url.path))

    async def __on_invalid_request(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        return await self.__on_failure(request, Failure(FailureKind.BAD_REQUEST, found))

    async def __on_http_exception(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        hot = sorted(self.__routes)
        detail = f"{error.detail}: {request.method} {request.url.path}"
        if error.status_code == 404:
            detail += f" (POST routes here: {', '.join(hot)})"
        failure = Failure(FailureKind.BAD_REQUEST, detail, status=error.status_code)
        return await self.__on_failure(request, failure)


def _watch(receive: Receive, hung_up: list[bool]) -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return asyncio.create_task(cancel_on_disconnect(receive, task, hung_up))


def _response(reply: RawResponse) -> Response:
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    return Response(reply.body, reply.status, headers, reply.content_type.decode())
