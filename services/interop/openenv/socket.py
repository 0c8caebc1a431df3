"""One WebSocket connection of an OpenEnv client: `/ws`, or `/mcp` with plain JSON-RPC messages."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from rollyard.records.errors import Failure
from rollyard.records.types import Json
from rollyard.services.interop.openenv.json_rpc import JsonRpc
from rollyard.services.interop.openenv.player import NotReset, Player
from rollyard.services.interop.serving.environment import ServedEnvironment
from rollyard.services.interop.serving.json_body import InvalidBody, object_in, parse_object
from rollyard.services.interop.serving.session_store import SessionLimit, SessionStore, StoredSession
from rollyard.services.interop.serving.task_list import UnknownTask

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
    """Yield the messages until the client disconnects."""
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
