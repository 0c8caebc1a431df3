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
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from services.call import Call, Handler, Reply, cancel_on_disconnect, read_body
from services.client import PROBLEM_TYPE, RUN_HEADER, ServerClient
from services.errors import Failure, FailureKind
from services.meters import CONTENT_TYPE, Meters, RouteMeter
from services.settings import ServerSettings
from services.transport import Receive, Scope, Send
from services.types import Json, Keys

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Route:
    path: str
    handler: Handler
    cancellable: bool
    meter: RouteMeter


@dataclass(frozen=True)
class Context:
    """What a server is given besides its settings."""

    name: str
    """The name by which others call it."""
    keys: Keys
    client: ServerClient


class Server:
    """A named server. Subclasses add routes in `__init__` and may override `start` and `stop`."""

    Settings: ClassVar[type[ServerSettings]] = ServerSettings

    def __init__(self, settings: ServerSettings, context: Context) -> None:
        self.settings = settings
        self.name = context.name
        self.context = context
        self.client = context.client
        self.ready = False
        self.requests = 0
        self.in_flight = 0
        self._routes: dict[str, _Route] = {}
        self._rest: _Route | None = None
        self._run_header = (RUN_HEADER.encode(), context.keys.run_id.encode())
        self._own_name = context.name.encode()
        self._token = context.keys.token
        self._started = time.time()
        self._meters = Meters()
        self._meters.gauge("rollyard_in_flight", "Requests being answered", lambda: self.in_flight)
        self._meters.gauge("rollyard_sessions", "Open sessions", lambda: self.sessions)
        self.app = self._make_app()

    @property
    def sessions(self) -> int:
        """Open sessions; servers that keep some override this."""
        return 0

    async def start(self) -> None:
        """Get ready to serve: load, connect, warm up. Raising ends the process with the message in its log."""

    async def stop(self) -> None:
        """Give everything back."""

    def route(self, path: str, handler: Handler, *, cancellable: bool = False) -> None:
        """Serve POST `path` from bytes to bytes.

        `cancellable` handlers are cancelled when the caller hangs up; worth its 15 us where the work is long.
        """
        self._routes[path] = _Route(path, handler, cancellable, self._meters.route(path))

    def route_rest(self, handler: Handler) -> None:
        """Serve every POST to a path that is no route; without it they are 404."""
        self._rest = _Route("other", handler, False, self._meters.route("other"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI door."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.requests += 1
        self.in_flight += 1
        try:
            if refusal := self._refusal(scope):
                await self._send(send, refusal)
            elif scope["method"] == "POST" and (route := self._routes.get(scope["path"], self._rest)):
                await self._serve(route, scope, receive, send)
            else:
                await self._serve_app(scope, receive, send)
        finally:
            self.in_flight -= 1

    def _refusal(self, scope: Scope) -> Reply | None:
        """A caller of another run, or one without the token, gets no further."""
        authorization = b""
        for name, value in scope["headers"]:
            if name == b"x-rollyard-run" and value != self._run_header[1]:
                asked = value.decode("latin-1")
                told = f"this is run {self.context.keys.run_id}, not {asked!r}"
                return self._failed(Failure(FailureKind.WRONG_RUN, told), scope["path"])
            if name == b"x-rollyard-to" and value != self._own_name:
                told = f"this is {self.name!r}, not {value.decode('latin-1')!r}"
                return self._failed(Failure(FailureKind.WRONG_RUN, told), scope["path"])
            if name == b"authorization":
                authorization = value
        if self._token and not hmac.compare_digest(authorization, b"Bearer " + self._token.encode()):
            failure = Failure(FailureKind.UNAUTHORIZED, "the run token is missing or wrong (Authorization: Bearer ...)")
            return self._failed(failure, scope["path"])
        return None

    async def _serve(self, route: _Route, scope: Scope, receive: Receive, send: Send) -> None:
        begun = time.perf_counter()
        watchers: list[asyncio.Task[None]] = []
        hung_up: list[bool] = []
        try:
            reply = await self._answer(route, scope, receive, lambda: watchers.append(_watch(receive, hung_up)))
            if reply.stream is not None and not watchers:
                watchers.append(_watch(receive, hung_up))
            route.meter.observe(reply.status, time.perf_counter() - begun)
            await self._send(send, reply)
        except asyncio.CancelledError:
            if not hung_up:
                raise
            route.meter.observe(499, time.perf_counter() - begun)
        finally:
            for watcher in watchers:
                watcher.cancel()

    async def _answer(self, route: _Route, scope: Scope, receive: Receive, watch: Callable[[], None]) -> Reply:
        try:
            call = Call(scope["path"], scope["headers"], await read_body(receive))
            # In one process the caller's task is this one: cancelling it needs no watcher.
            if route.cancellable and scope.get("client") is not None:
                watch()
            reply = await route.handler(call)
            return Reply(reply) if isinstance(reply, bytes) else reply
        except Failure as failure:
            return self._failed(failure, scope["path"])
        except Exception as error:
            return self._raised(error, scope["path"])

    def _raised(self, error: Exception, path: str) -> Reply:
        log.error("%s%s failed", self.name, path, exc_info=error)
        detail = f"{type(error).__name__}: {error} (traceback in the log of {self.name})"
        return self._failed(Failure(FailureKind.SERVER_ERROR, detail), path)

    def _failed(self, failure: Failure, path: str) -> Reply:
        """The failure as an answer; the first server that meets it puts its name on it."""
        problem = failure.problem
        if not problem.server:
            problem = problem.model_copy(update={"server": self.name, "instance": problem.instance or path})
        return Reply(problem.model_dump_json().encode(), problem.status, content_type=PROBLEM_TYPE.encode())

    async def _send(self, send: Send, reply: Reply) -> None:
        headers = [(b"content-type", reply.content_type), self._run_header, *reply.headers]
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

    async def _serve_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = False

        async def marked(message: Any) -> None:
            nonlocal whole
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], self._run_header]
            whole = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            await self.app(scope, receive, marked)
        except Exception:
            if not whole:  # Starlette raises again what `_on_exception` has answered and logged
                raise

    def _make_app(self) -> FastAPI:
        app = FastAPI(title=self.name, docs_url="/docs", redoc_url=None)
        app.add_exception_handler(Failure, self._on_failure)
        app.add_exception_handler(HTTPException, self._on_http_exception)
        app.add_exception_handler(RequestValidationError, self._on_invalid_request)
        app.add_exception_handler(Exception, self._on_exception)
        plain_openapi = app.openapi

        def openapi() -> Json:
            schema = plain_openapi()
            for route in self._routes.values():
                schema["paths"].setdefault(route.path, {"post": _documented(route)})
            return schema

        app.openapi = openapi  # type: ignore[method-assign]

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
            return Response(self._meters.text(), media_type=CONTENT_TYPE)

        return app

    async def _on_failure(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Failure)
        reply = self._failed(error, request.url.path)
        return Response(reply.body, reply.status, media_type=PROBLEM_TYPE)

    async def _on_exception(self, request: Request, error: Exception) -> Response:
        reply = self._raised(error, request.url.path)
        return Response(reply.body, reply.status, media_type=PROBLEM_TYPE)

    async def _on_invalid_request(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        return await self._on_failure(request, Failure(FailureKind.BAD_REQUEST, found))

    async def _on_http_exception(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        hot = sorted(self._routes)
        detail = f"{error.detail}: {request.method} {request.url.path}"
        if error.status_code == 404:
            detail += f" (POST routes here: {', '.join(hot)})"
        failure = Failure(FailureKind.BAD_REQUEST, detail, status=error.status_code)
        return await self._on_failure(request, failure)


def _watch(receive: Receive, hung_up: list[bool]) -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return asyncio.create_task(cancel_on_disconnect(receive, task, hung_up))


def _documented(route: _Route) -> Json:
    text = (route.handler.__doc__ or "").strip()
    body = {"content": {"application/json": {"schema": {"type": "object"}}}}
    problem = {"description": "A problem (RFC 9457)", "content": {PROBLEM_TYPE: {"schema": {"type": "object"}}}}
    return {
        "summary": text.partition("\n")[0],
        "description": text,
        "requestBody": {**body, "required": True},
        "responses": {"200": {"description": "OK", **body}, "default": problem},
    }
