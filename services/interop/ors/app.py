"""The app that serves an environment over ORS. A session is one episode, named by the header X-Session-ID.

A client asks for a session id (`/create_session`), opens an episode (`/create`), calls tools (`/{env}/call`) and sends
`/ping` while it is alive. A session without a request for `idle_s` seconds is closed.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from rollyard.records.types import Json
from rollyard.services.interop.ors.event_stream import RunningCalls, event, result_events
from rollyard.services.interop.ors.tool_outputs import listed_tools, prompt_blocks, prompt_messages, tool_output
from rollyard.services.interop.serving.environment import ServedEnvironment
from rollyard.services.interop.serving.episode import Outcome, ServedEpisode
from rollyard.services.interop.serving.error_handlers import handle_errors
from rollyard.services.interop.serving.json_body import object_in, read_object, text_in
from rollyard.services.interop.serving.session_store import SessionStore, StoredSession
from rollyard.services.interop.serving.task_list import UnknownTask
from rollyard.services.interop.serving.task_routes import add_task_routes, check_name

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_MAX_ID = 200


def ors_app(environment: ServedEnvironment, *, version: str, max_sessions: int, idle_s: float) -> FastAPI:
    """Return the app."""
    sessions: SessionStore[ServedEpisode] = SessionStore(max_sessions, idle_s)
    calls = RunningCalls()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with sessions.open():
            try:
                yield
            finally:
                await calls.close()

    app = FastAPI(title=environment.name, redoc_url=None, lifespan=lifespan)
    app.state.sessions = sessions
    handle_errors(app, invalid_status=400)

    def stored(request: Request) -> StoredSession[ServedEpisode]:
        session_id = _session_id(request)
        if (found := sessions.find(session_id)) is None:
            raise HTTPException(404, f"there is no session {session_id[:80]!r}: it was not created, or it has ended")
        return found

    @app.get("/health")
    async def health() -> Json:
        return {"status": "ok", "sessions": len(sessions)}

    @app.get("/version")
    async def served_by() -> Json:
        return {"version": version, "build_sha": None}

    @app.post("/create_session")
    async def create_session() -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            yield event("task_id", secrets.token_hex(16))
            yield event("end", "")

        return _stream(events())

    @app.post("/delete_session")
    @app.post("/delete")
    async def delete(request: Request) -> Json:
        session_id = _session_id(request)
        await sessions.remove(session_id)
        return {"sid": session_id}

    @app.post("/ping")
    async def ping(request: Request) -> Json:
        stored(request)
        return {"status": "ok"}

    @app.post("/create")
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

    @app.get("/{env_name}/task_tools")
    async def task_tools(env_name: str, request: Request) -> Json:
        check_name(environment, env_name)
        return listed_tools(environment, stored(request).value.tools)

    @app.get("/{env_name}/prompt")
    async def prompt(env_name: str, request: Request) -> list[Json]:
        check_name(environment, env_name)
        return prompt_blocks(stored(request).value)

    @app.get("/{env_name}/messages")
    async def messages(env_name: str, request: Request) -> list[Json]:
        check_name(environment, env_name)
        return prompt_messages(stored(request).value)

    @app.post("/{env_name}/call")
    async def call(env_name: str, request: Request) -> StreamingResponse:
        check_name(environment, env_name)
        session_id, session, asked = _session_id(request), stored(request), await read_object(request)
        if (task_id := asked.get("task_id")) is None:
            name, arguments = text_in(asked, "name"), object_in(asked, "input")

            async def work() -> str:
                async with session.lock:
                    return tool_output(await _act(environment, session.value, name, arguments))

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


async def _act(environment: ServedEnvironment, episode: ServedEpisode, name: str, arguments: Json) -> Outcome:
    if name != environment.submit_name:
        return await episode.call(name, arguments)
    if not isinstance(answer := arguments.get("answer"), str):
        return Outcome(f"answer is {answer!r:.100}; expected a string", problem="invalid_args")
    return await episode.say(answer)


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
