"""The app that serves an environment over ORS. A session is one episode, named by the header X-Session-ID.

A client asks for a session id (`/create_session`), opens an episode (`/create`), calls tools (`/{env}/call`) and sends
`/ping` while it is alive. A session without a request for `idle_s` seconds is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from rollyard.records.errors import Failure
from rollyard.records.types import Json
from rollyard.services.interop.environment import EpisodeOutcome, ServedEnvironment, ServedEpisode, UnknownTask
from rollyard.services.interop.served_app import (
    ERRORS,
    SessionStore,
    StoredSession,
    add_task_routes,
    check_name,
    handle_errors,
    object_in,
    read_object,
    text_in,
    with_body,
)

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_MAX_ID = 200
_SESSION = "X-Session-ID"
_EVENTS: dict[int | str, Json] = {200: {"content": {"text/event-stream": {}}}}


def ors_app(environment: ServedEnvironment, *, version: str, max_sessions: int, idle_s: float) -> FastAPI:
    sessions: SessionStore[ServedEpisode] = SessionStore(max_sessions, idle_s)
    calls = RunningCalls()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with sessions.open():
            try:
                yield
            finally:
                await calls.close()

    app = FastAPI(title=environment.name, docs_url=None, redoc_url=None, lifespan=lifespan, responses=ERRORS)
    app.state.sessions = sessions
    handle_errors(app, invalid_status=400)

    def stored(request: Request) -> StoredSession[ServedEpisode]:
        if (found := sessions.find(session_id := _session_id(request))) is None:
            raise HTTPException(404, f"there is no session {session_id[:80]!r}: it was not created, or it has ended")
        return found

    @app.get("/health")
    async def health() -> Json:
        return {"status": "ok", "sessions": len(sessions)}

    @app.get("/version")
    async def served_by() -> Json:
        return {"version": version, "build_sha": None}

    of_session = with_body({}, headers=[_SESSION])

    @app.post("/create_session", responses=_EVENTS)
    async def create_session() -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            yield event("task_id", secrets.token_hex(16))
            yield event("end", "")

        return _stream(events())

    @app.post("/delete_session", openapi_extra=of_session)
    @app.post("/delete", openapi_extra=of_session)
    async def delete(request: Request) -> Json:
        await sessions.remove(session_id := _session_id(request))
        return {"sid": session_id}

    @app.post("/ping", openapi_extra=of_session)
    async def ping(request: Request) -> Json:
        stored(request)
        return {"status": "ok"}

    spec = {"split": {"type": "string"}, "index": {"type": "integer"}, "row": {"type": "object"}}
    chosen = {"env_name": {"type": "string"}, "task_spec": {"type": "object", "properties": spec}, **spec}

    @app.post("/create", openapi_extra=with_body(chosen, headers=[_SESSION]))
    async def create(request: Request) -> Json:
        session_id, asked = _session_id(request), await read_object(request)
        if (name := asked.get("env_name")) is not None:
            check_name(environment, str(name))
        if asked.get("toolset_name") is not None:
            raise HTTPException(400, "this server has no toolsets; leave toolset_name out")
        if session_id in sessions:
            raise HTTPException(400, f"session {session_id[:80]!r} already exists")
        session = sessions.add(session_id, environment.episode(_row(environment, asked)))
        try:
            async with session.lock:
                await session.value.open()
        except BaseException:
            await sessions.remove(session_id)
            raise
        return {"sid": session_id}

    @app.get("/{env_name}/tools")
    async def tools(env_name: str) -> Json:
        check_name(environment, env_name)
        return listed_tools(environment, environment.tools)

    @app.get("/{env_name}/task_tools", openapi_extra=of_session)
    async def task_tools(env_name: str, request: Request) -> Json:
        check_name(environment, env_name)
        return listed_tools(environment, stored(request).value.tools)

    @app.get("/{env_name}/prompt", openapi_extra=of_session)
    async def prompt(env_name: str, request: Request) -> list[Json]:
        check_name(environment, env_name)
        return [_block(message["content"]) for message in stored(request).value.messages]

    @app.get("/{env_name}/messages", openapi_extra=of_session)
    async def messages(env_name: str, request: Request) -> list[Json]:
        check_name(environment, env_name)
        found = stored(request).value.messages
        roles = ("system", "user", "assistant")
        return [{"role": one["role"], "blocks": [_block(one["content"])]} for one in found if one["role"] in roles]

    called = {"name": {"type": "string"}, "input": {"type": "object"}, "task_id": {"type": "string"}}

    @app.post("/{env_name}/call", responses=_EVENTS, openapi_extra=with_body(called, headers=[_SESSION]))
    async def call(env_name: str, request: Request) -> StreamingResponse:
        check_name(environment, env_name)
        session_id, session, asked = _session_id(request), stored(request), await read_object(request)
        if (task_id := asked.get("task_id")) is None:
            name, arguments = text_in(asked, "name"), object_in(asked, "input")

            async def work() -> str:
                async with session.lock:
                    return tool_output(await environment.act(session.value, name, arguments))

            task_id = calls.start(session_id, work)
        task = calls.find(session_id, str(task_id))
        if task is None:
            raise HTTPException(404, f"there is no call {str(task_id)[:80]!r} in this session")
        return _stream(result_events(str(task_id), task))

    add_task_routes(app, environment)
    app.add_middleware(DefaultEnvironment, name=environment.name)
    return app


class DefaultEnvironment:
    """Lets clients leave out the environment's name: `/call` is `/{env}/call`."""

    _PATHS = frozenset(
        ("tools", "task_tools", "prompt", "messages", "call", "splits", "tasks", "num_tasks", "task", "task_range")
    )

    def __init__(self, app: Any, name: str) -> None:
        self._app = app
        self._name = name

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].strip("/") in self._PATHS:
            path = f"/{self._name}{scope['path']}"
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)


def _row(environment: ServedEnvironment, asked: Json) -> Json:
    """Return the row that `/create` names by `task_spec`, or by `split` and `index`. Raises UnknownTask."""
    spec = asked.get("task_spec")
    chosen = asked if spec is None else object_in(asked, "task_spec")
    if "row" in chosen:
        return environment.tasks.choose({"row": chosen["row"]})
    if "index" not in chosen:
        raise UnknownTask("the task has no index; expected {split, index}, or {row}")
    environment.tasks.check_split(chosen.get("split", environment.tasks.split))
    return environment.tasks.row(chosen["index"])


def _session_id(request: Request) -> str:
    session_id = request.headers.get("x-session-id", "").strip()
    if not session_id or len(session_id) > _MAX_ID:
        raise HTTPException(400, f"the header X-Session-ID is {session_id[:80]!r}; expected the id of a session")
    return session_id


def _stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)


REASONS = {
    "tool_not_found": "not_found",
    "invalid_args": "input_validation",
    "execution_error": "input_validation",
    "episode_over": "episode_finished",
}


def listed_tools(environment: ServedEnvironment, tools: list[Json]) -> Json:
    """Return ListToolsOutput. In turn-based environments, the tool that sends a message is an ordinary one.

    Otherwise it is the terminal tool: a message of the model without a tool call ends the episode.
    """
    submit = environment.submit_tool
    specs = [
        {"name": tool["name"], "description": tool.get("description") or "", "input_schema": tool.get("parameters")}
        for tool in (*tools, *([submit] if environment.turn_based else []))
    ]
    terminal = {"name": submit["name"], "arg": "answer", "description": submit["description"]}
    return {
        "tools": specs,
        "terminal_tool": None if environment.turn_based else terminal,
        "supports_score_group": False,
        "message_block_types": ["text"],
    }


def _block(text: str) -> Json:
    return {"type": "text", "text": text}


def tool_output(outcome: EpisodeOutcome) -> str:
    """Return RunToolOutput as JSON: a ToolOutput, or the words that tell the model why the call was not executed."""
    if outcome.problem:
        return orjson.dumps({"ok": False, "error": outcome.text, "reason": REASONS[outcome.problem]}).decode()
    output = {
        "blocks": [_block(outcome.text)],
        "metadata": outcome.info or None,
        "reward": outcome.reward,
        "finished": outcome.done,
    }
    return orjson.dumps({"ok": True, "output": output}).decode()


PIECE = 4096
PING_S = 10.0
KEEP_S = 60.0
"""How long a result is kept for a client that comes back for it."""

log = logging.getLogger(__name__)


class RunningCalls:
    """The calls that are running, or whose result is still kept. A call is executed once, however often it is read."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._finished: dict[tuple[str, str], float] = {}

    def start(self, session_id: str, call: Callable[[], Awaitable[str]]) -> str:
        self._forget_old()
        key = (session_id, secrets.token_hex(16))

        async def run() -> str:
            try:
                return await call()
            finally:
                self._finished[key] = time.monotonic()

        self._tasks[key] = asyncio.create_task(run())
        return key[1]

    def find(self, session_id: str, task_id: str) -> asyncio.Task[str] | None:
        return self._tasks.get((session_id, task_id))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _forget_old(self) -> None:
        old = [key for key, at in self._finished.items() if time.monotonic() - at > KEEP_S]
        for key in old:
            self._finished.pop(key)
            self._tasks.pop(key, None)


async def result_events(task_id: str, task: asyncio.Task[str]) -> AsyncIterator[bytes]:
    """Yield the events of one call: its id, pings while it runs, and its result or an error."""
    yield event("task_id", task_id)
    while not task.done():
        await asyncio.wait({task}, timeout=PING_S)
        if not task.done():
            yield b": ping\n\n"
    if task.cancelled():
        yield event("error", "the server is stopping")
    elif error := task.exception():
        yield event("error", _text_of(error))
    else:
        text = task.result()
        pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)] or [""]
        for piece in pieces[:-1]:
            yield event("chunk", piece)
        yield event("end", pieces[-1])


def event(name: str, data: str) -> bytes:
    """Return one event. `data` is JSON or an id, or is reduced to one line."""
    return f"event: {name}\ndata: {' '.join(data.splitlines()) if name == 'error' else data}\n\n".encode()


def _text_of(error: BaseException) -> str:
    if isinstance(error, Failure):
        return error.problem.detail
    log.error("a call of an ORS client failed", exc_info=error)
    return "internal error; the server's log has the details"
