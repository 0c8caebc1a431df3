"""The app that serves an environment over OpenEnv's protocol.

`POST /reset` and `POST /step` use a new episode for each request, as OpenEnv's own servers do. An episode of several
steps is played over the WebSocket `/ws`; a session lives as long as its connection.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from rollyard.records.errors import Failure
from rollyard.records.types import Json
from rollyard.services.interop.environment import ServedEnvironment, UnknownTask
from rollyard.services.interop.openenv_player import JsonRpc, NotReset, Player
from rollyard.services.interop.served_app import (
    InvalidBody,
    add_task_routes,
    handle_errors,
    object_in,
    parse_object,
    read_object,
)
from rollyard.services.interop.session_store import SessionLimit, SessionStore, StoredSession

VERSION = "1.0.0"
"""Version of OpenEnv's HTTP API, which `openenv validate` reads."""


def openenv_app(environment: ServedEnvironment, *, max_sessions: int, idle_s: float) -> FastAPI:
    """Return the app. `idle_s`: after which time a session of HTTP requests without a connection is closed."""
    sessions: SessionStore[Player] = SessionStore(max_sessions, idle_s)
    rpc = JsonRpc(environment, sessions)
    sockets = Sockets(environment, sessions, rpc)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with sessions.open():
            yield

    app = FastAPI(title=environment.name, version=VERSION, redoc_url=None, lifespan=lifespan)
    app.state.sessions = sessions
    handle_errors(app, invalid_status=422)

    @app.get("/health")
    async def health() -> Json:
        return {"status": "healthy", "sessions": len(sessions)}

    @app.get("/metadata")
    async def metadata() -> Json:
        return {"name": environment.name, "description": environment.description, "version": VERSION}

    @app.get("/schema")
    async def schema() -> Json:
        action = action_schema(turn_based=environment.turn_based)
        observation = observation_schema()
        return {
            "action": action,
            "observation": observation,
            "reset_observation": observation,
            "state": state_schema(),
        }

    @app.get("/state")
    async def state() -> Json:
        """Return the state of a new episode: this request belongs to no session."""
        return Player(environment).state()

    @app.post("/reset")
    async def reset(request: Request) -> Json:
        asked, player = await read_object(request), Player(environment)
        try:
            return await player.reset(asked)
        finally:
            await player.close()

    @app.post("/step")
    async def step(request: Request) -> Json:
        asked, player = await read_object(request), Player(environment)
        if "action" not in asked:
            raise InvalidBody("action is missing; expected an object")
        try:
            await player.reset({**asked, "episode_id": None})
            return await player.step(object_in(asked, "action"))
        finally:
            await player.close()

    @app.post("/mcp")
    async def mcp(request: Request) -> Json:
        body = await request.body()
        return await rpc.answer(body)

    @app.websocket("/ws")
    async def play(socket: WebSocket) -> None:
        await sockets.play(socket)

    @app.websocket("/mcp")
    async def call_tools(socket: WebSocket) -> None:
        await sockets.call_tools(socket)

    add_task_routes(app, environment)
    return app


log = logging.getLogger(__name__)


class Sockets:
    """Serves the WebSocket connections of one environment. A session ends with its connection."""

    def __init__(self, environment: ServedEnvironment, sessions: SessionStore[Player], rpc: JsonRpc) -> None:
        self._environment = environment
        self._sessions = sessions
        self._rpc = rpc

    async def play(self, socket: WebSocket) -> None:
        """Serve `/ws`. With `?session_id=`, it plays a session that `openenv/session/create` opened."""
        await socket.accept()
        named = socket.query_params.get("session_id")
        try:
            session_id, stored = (named, self._attach(named)) if named else self._create()
        except (SessionLimit, InvalidBody) as error:
            code = "CAPACITY_REACHED" if isinstance(error, SessionLimit) else "SESSION_ERROR"
            await _send(socket, _error(code, str(error)))
            await _close(socket)
            return
        stored.attached = True
        try:
            async for text in _messages(socket):
                async with stored.lock:
                    answer = await self._answer(text, stored.value)
                if answer is None:
                    break
                await _send(socket, answer)
        finally:
            stored.attached = False
            if not named:
                await self._sessions.remove(session_id)
            await _close(socket)

    async def call_tools(self, socket: WebSocket) -> None:
        """Serve `/mcp`: every message is a JSON-RPC request."""
        await socket.accept()
        try:
            session_id, stored = self._create()
        except SessionLimit as error:
            await _send(socket, {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": str(error)}})
            await _close(socket)
            return
        stored.attached = True
        try:
            async for text in _messages(socket):
                await _send(socket, await self._rpc.answer(text, stored.value))
        finally:
            await self._sessions.remove(session_id)
            await _close(socket)

    def _create(self) -> tuple[str, StoredSession[Player]]:
        session_id = secrets.token_hex(16)
        return session_id, self._sessions.add(session_id, Player(self._environment))

    def _attach(self, session_id: str) -> StoredSession[Player]:
        stored = self._sessions.find(session_id)
        if stored is None:
            raise InvalidBody(f"there is no session {session_id[:80]!r}")
        if stored.attached:
            raise InvalidBody(f"session {session_id[:80]!r} has a connection already")
        return stored

    async def _answer(self, text: bytes | str, player: Player) -> Json | None:
        """Return the answer to a message; None if it ends the session."""
        try:
            message = parse_object(text)
            kind = message.get("type")
            if kind == "close":
                return None
            if kind == "reset":
                return {"type": "observation", "data": await player.reset(object_in(message, "data"))}
            if kind == "step":
                return {"type": "observation", "data": await player.step(object_in(message, "data"))}
            if kind == "state":
                return {"type": "state", "data": player.state()}
            if kind == "mcp":
                return {"type": "mcp", "data": await self._rpc.answer_object(object_in(message, "data"), player)}
            expected = "reset, step, state, mcp or close"
            return _error("UNKNOWN_TYPE", f"there is no message type {kind!r:.100}; expected {expected}")
        except InvalidBody as error:
            return _error("VALIDATION_ERROR" if error.is_json else "INVALID_JSON", str(error))
        except UnknownTask as error:
            return _error("VALIDATION_ERROR", str(error))
        except NotReset as error:
            return _error("EXECUTION_ERROR", str(error))
        except Failure as failure:
            return _error("EXECUTION_ERROR", failure.problem.detail)
        except Exception:
            log.exception("a message of an OpenEnv client failed")
            return _error("EXECUTION_ERROR", "internal error; the server's log has the details")


async def _messages(socket: WebSocket) -> AsyncIterator[bytes | str]:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        yield message.get("bytes") or b"" if text is None else text


async def _send(socket: WebSocket, message: Json) -> None:
    try:
        await socket.send_text(_encoded(message))
    except (WebSocketDisconnect, RuntimeError):
        log.info("a client disconnected before it read its answer")


def _encoded(message: Any) -> str:
    # Tool results are read with orjson and contain no lone surrogates.
    return orjson.dumps(message, option=orjson.OPT_NON_STR_KEYS).decode()


async def _close(socket: WebSocket) -> None:
    if socket.application_state is WebSocketState.CONNECTED and socket.client_state is WebSocketState.CONNECTED:
        try:
            await socket.close()
        except (WebSocketDisconnect, RuntimeError):
            log.info("a client disconnected first")


def _error(code: str, text: str) -> Json:
    return {"type": "error", "data": {"message": text, "code": code}}


_TEXT: Json = {"type": "string"}
_METADATA: Json = {"type": "object", "additionalProperties": True}


def action_schema(*, turn_based: bool) -> Json:
    kinds = ["message"] if turn_based else ["call_tool", "list_tools", "message"]
    fields: Json = {
        "type": {"enum": kinds, "description": "What the model does."},
        "message": {
            **_TEXT,
            "description": "For `message`: the model's text. It ends a game that is played by tools.",
        },
        "metadata": _METADATA,
    }
    if not turn_based:
        fields["tool_name"] = {**_TEXT, "description": "For `call_tool`: the tool's name."}
        fields["arguments"] = {"type": "object", "description": "For `call_tool`: the tool's arguments."}
    return {"title": "Action", "type": "object", "properties": fields, "required": ["type"]}


def observation_schema() -> Json:
    fields: Json = {
        "text": {**_TEXT, "description": "What the model reads next."},
        "messages": {"type": "array", "items": {"type": "object"}, "description": "After a reset: the conversation."},
        "tools": {"type": "array", "items": {"type": "object"}, "description": "After a reset or list_tools."},
        "tool_name": _TEXT,
        "result": {"description": "The tool's result."},
        "error": {"anyOf": [{"type": "object"}, {"type": "null"}], "description": "Why a call was not executed."},
        "done": {"type": "boolean"},
        "reward": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "metadata": _METADATA,
    }
    return {"title": "Observation", "type": "object", "properties": fields}


def state_schema() -> Json:
    fields: Json = {
        "episode_id": {"anyOf": [_TEXT, {"type": "null"}]},
        "step_count": {"type": "integer", "minimum": 0},
        "done": {"type": "boolean"},
    }
    return {"title": "State", "type": "object", "properties": fields}
