"""What the apps of OpenEnv and ORS share: the listener and who may use it, the routes that list tasks, the JSON objects
of clients, errors as responses, and the sessions that clients name by id.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import time
from collections.abc import AsyncIterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import orjson
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.optional import load
from rollyard.records.types import Json
from rollyard.services.http.access import Access, KnownHosts, is_loopback
from rollyard.services.http.listener import listening
from rollyard.services.http.tls import ServerCertificate
from rollyard.services.interop.environment import ServedEnvironment, UnknownTask


@contextlib.asynccontextmanager
async def listening_to_clients(
    app: FastAPI, sock: socket.socket, host: str, token: str | None, certificate: ServerCertificate | None = None
) -> AsyncIterator[None]:
    """Serve the app on the socket while the block runs. Raises RunError if the app cannot start."""
    load("websockets", "openenv", "serving an environment to other programs")
    hosts = KnownHosts([host], any_address=not is_loopback(host))
    access = Access(hosts, command="ng_serve", other_users=token is not None)
    async with listening(
        AccessMiddleware(app, access, token),
        sock,
        certificate,
        ws="websockets-sansio",
        ws_max_size=MAX_BODY,
        lifespan="on",
        backlog=4096,
        timeout_graceful_shutdown=3,
    ):
        yield


class AccessMiddleware:
    """Checks the origin of a request (`Access`), or its token if one is configured."""

    def __init__(self, app: ASGIApp, access: Access, token: str | None) -> None:
        self._app = app
        self._access = access
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or (failure := self._refusal(scope)) is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await JSONResponse({"detail": failure.problem.detail}, failure.problem.status)(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": failure.problem.detail[:120]})

    def _refusal(self, scope: MutableMapping[str, Any]) -> Failure | None:
        if self._token is None:
            # A WebSocket opens with a GET request, but its scope has no method.
            return self._access.refusal({"method": "GET", **scope})
        given = [value for name, value in scope["headers"] if name in (b"authorization", b"x-api-key")]
        if any(hmac.compare_digest(value.removeprefix(b"Bearer "), self._token.encode()) for value in given):
            return None
        detail = "the token is missing or wrong; expected the header Authorization: Bearer <token>, or X-API-Key"
        return Failure(FailureKind.UNAUTHORIZED, detail)


ERRORS: dict[int | str, Json] = {
    "default": {
        "description": "An error",
        "content": {
            "application/json": {
                "schema": {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
            }
        },
    }
}
"""The error responses of all routes in the app's OpenAPI document."""


def with_body(properties: Json, required: Sequence[str] = (), headers: Sequence[str] = ()) -> Json:
    """Describe the JSON object that a route reads itself, and its required headers, for FastAPI's `openapi_extra`."""
    schema: Json = {"type": "object", "properties": properties, "required": list(required)}
    parameters = [{"name": name, "in": "header", "required": True, "schema": {"type": "string"}} for name in headers]
    body = {"content": {"application/json": {"schema": schema}}}
    return {"parameters": parameters, **({"requestBody": body} if properties else {})}


_SPLIT: Json = {"split": {"type": "string"}}


def add_task_routes(app: FastAPI, environment: ServedEnvironment) -> None:
    tasks = environment.tasks

    @app.get("/list_environments")
    async def list_environments() -> list[str]:
        return [environment.name]

    split = with_body(_SPLIT)

    @app.get("/{env_name}/splits")
    async def splits(env_name: str) -> list[Json]:
        check_name(environment, env_name)
        return [{"name": tasks.split, "type": tasks.split}]

    @app.post("/{env_name}/tasks", openapi_extra=split)
    async def list_tasks(env_name: str, request: Request) -> Json:
        await _asked(environment, env_name, request)
        return {"tasks": [_task(tasks.split, index) for index in range(len(tasks))], "env_name": environment.name}

    @app.post("/{env_name}/num_tasks", openapi_extra=split)
    async def num_tasks(env_name: str, request: Request) -> Json:
        await _asked(environment, env_name, request)
        return {"num_tasks": len(tasks)}

    @app.post("/{env_name}/task", openapi_extra=with_body({**_SPLIT, "index": {"type": "integer"}}))
    async def task(env_name: str, request: Request) -> Json:
        index = (await _asked(environment, env_name, request)).get("index")
        tasks.row(index)
        return {"task": _task(tasks.split, index), "env_name": environment.name}

    bounds: Json = {key: {"type": ["integer", "null"]} for key in ("start", "stop")}

    @app.post("/{env_name}/task_range", openapi_extra=with_body({**_SPLIT, **bounds}))
    async def task_range(env_name: str, request: Request) -> Json:
        asked = await _asked(environment, env_name, request)
        indices = tasks.between(asked.get("start"), asked.get("stop"))
        return {"tasks": [_task(tasks.split, index) for index in indices], "env_name": environment.name}


def check_name(environment: ServedEnvironment, name: str) -> None:
    """Raise HTTPException (404) unless this is the environment's name, in any case."""
    if name.lower() != environment.name.lower():
        raise HTTPException(404, f"there is no environment {name[:100]!r}; this server has {environment.name!r}")


async def _asked(environment: ServedEnvironment, name: str, request: Request) -> Json:
    check_name(environment, name)
    asked = await read_object(request)
    environment.tasks.check_split(asked.get("split"))
    return asked


def _task(split: str, index: object) -> Json:
    return {"split": split, "index": index}


MAX_BODY = 16 * 1024 * 1024


class InvalidBody(ValueError):
    """The client's message is unusable. The text says what was found and what was expected."""

    def __init__(self, text: str, *, is_json: bool = True) -> None:
        super().__init__(text)
        self.is_json = is_json


def parse_object(text: bytes | str) -> Json:
    """Parse a JSON object. Raises InvalidBody."""
    try:
        value: Any = orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError) as error:
        raise InvalidBody(f"the message is not JSON: {error}", is_json=False) from error
    if not isinstance(value, dict):
        raise InvalidBody(f"the message is a JSON {type(value).__name__}; expected an object")
    return value


async def read_object(request: Request) -> Json:
    """Read the body of a request as a JSON object; an empty body is an empty object. Raises InvalidBody."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise InvalidBody(f"the body exceeds {MAX_BODY} bytes")
    return parse_object(bytes(body)) if body.strip() else {}


def object_in(message: Json, name: str) -> Json:
    """Return the object in a field; an absent field is an empty object. Raises InvalidBody."""
    value = message.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidBody(f"{name} is a JSON {type(value).__name__}; expected an object")
    return value


def text_in(message: Json, name: str) -> str:
    """Return the non-empty string in a field. Raises InvalidBody."""
    value = message.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidBody(f"{name} is {value!r:.100}; expected a non-empty string")
    return value


def handle_errors(app: FastAPI, *, invalid_status: int) -> None:
    """Install the handlers. `invalid_status`: the protocol's status for a request that is not valid."""

    def handle(kind: type[Exception], status: int, detail: str = "") -> None:
        async def handler(request: Request, error: Exception) -> JSONResponse:
            if isinstance(error, Failure):
                return JSONResponse({"detail": error.problem.detail}, error.problem.status)
            return JSONResponse({"detail": detail or str(error)}, status)

        app.add_exception_handler(kind, handler)

    handle(InvalidBody, invalid_status)
    handle(UnknownTask, invalid_status)
    handle(SessionLimit, 503)
    handle(Failure, 500)
    handle(Exception, 500, "internal error; the server's log has the details")


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class SessionLimit(Exception):
    """Too many sessions are open. The message states the limit."""


@dataclass
class StoredSession(Generic[T]):
    """A session and its lock: a call holds the lock, so that calls of one session never overlap."""

    value: T
    touched: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    attached: bool = False
    """Whether a connection holds the session: it then ends with the connection, whatever its idle time."""


class SessionStore(Generic[T]):
    def __init__(self, limit: int, idle_s: float) -> None:
        self.limit = limit
        self._idle_s = idle_s
        self._sessions: dict[str, StoredSession[T]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    def add(self, session_id: str, value: T) -> StoredSession[T]:
        """Store a session. Raises SessionLimit if too many are open, and ValueError if the id is taken."""
        if session_id in self._sessions:
            raise ValueError(f"session {session_id!r:.80} already exists")
        if len(self._sessions) >= self.limit:
            raise SessionLimit(f"{len(self._sessions)} sessions are open; the limit is {self.limit} (--max-sessions)")
        self._sessions[session_id] = stored = StoredSession(value, time.monotonic())
        return stored

    def find(self, session_id: object) -> StoredSession[T] | None:
        """Return the session and restart its idle time; None if it is not open."""
        stored = self._sessions.get(session_id) if isinstance(session_id, str) else None
        if stored is not None:
            stored.touched = time.monotonic()
        return stored

    async def remove(self, session_id: str) -> bool:
        """End a session, even if the caller is cancelled. Return whether it was open."""
        if (stored := self._sessions.pop(session_id, None)) is None:
            return False
        closing = asyncio.create_task(stored.value.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)
        return True

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """End idle sessions while the block runs, and all others after it."""
        reaping = asyncio.create_task(self._reap())
        try:
            yield
        finally:
            reaping.cancel()
            await asyncio.gather(*(self.remove(session_id) for session_id in list(self._sessions)))
            await asyncio.gather(*self._closing)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle_s / 4, 30.0))
            now = time.monotonic()
            for session_id, stored in list(self._sessions.items()):
                if now - stored.touched > self._idle_s and not (stored.attached or stored.lock.locked()):
                    await self.remove(session_id)
