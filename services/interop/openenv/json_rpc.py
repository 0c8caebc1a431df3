"""MCP over JSON-RPC 2.0: lists and calls the tools of an environment. Malformed messages get an answer, too."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from rollyard.records.errors import Failure
from rollyard.records.types import Json
from rollyard.services.interop.openenv.player import Player, tool_spec
from rollyard.services.interop.serving.environment import ServedEnvironment
from rollyard.services.interop.serving.json_body import InvalidBody, object_in, parse_object, text_in
from rollyard.services.interop.serving.session_store import SessionLimit, SessionStore
from rollyard.services.interop.serving.task_list import UnknownTask

PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
INTERNAL_ERROR, SERVER_ERROR = -32603, -32000
PROTOCOL_VERSION = "2025-06-18"

log = logging.getLogger(__name__)


class RpcError(Exception):
    """An error answer with its JSON-RPC code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class JsonRpc:
    """Answers JSON-RPC requests, inside a client's session or without one."""

    def __init__(self, environment: ServedEnvironment, sessions: SessionStore[Player]) -> None:
        self._environment = environment
        self._sessions = sessions
        self._methods: dict[str, Callable[[Json, Player | None], Awaitable[Json]]] = {
            "initialize": self._initialize,
            "ping": self._ping,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "openenv/session/create": self._create_session,
            "openenv/session/close": self._close_session,
        }

    async def answer(self, text: bytes | str, player: Player | None = None) -> Json:
        """Return the answer to a request as text. `player`: the session of the connection that sent it."""
        try:
            request = parse_object(text)
        except InvalidBody as error:
            return _error(None, INVALID_REQUEST if error.is_json else PARSE_ERROR, str(error))
        return await self.answer_object(request, player)

    async def answer_object(self, request: Json, player: Player | None = None) -> Json:
        """Return the answer to a request."""
        request_id = request.get("id") if isinstance(request.get("id"), str | int) else None
        try:
            if request.get("jsonrpc") != "2.0":
                raise RpcError(INVALID_REQUEST, f"jsonrpc is {request.get('jsonrpc')!r:.40}; expected '2.0'")
            name = request.get("method")
            if not isinstance(name, str):
                raise RpcError(INVALID_REQUEST, f"method is {name!r:.100}; expected a string")
            if name not in self._methods:
                known = ", ".join(self._methods)
                raise RpcError(UNKNOWN_METHOD, f"there is no method {name[:100]!r}; expected one of {known}")
            result = await self._methods[name](object_in(request, "params"), player)
        except RpcError as error:
            return _error(request_id, error.code, str(error))
        except (InvalidBody, UnknownTask) as error:
            return _error(request_id, INVALID_PARAMS, str(error))
        except SessionLimit as error:
            return _error(request_id, SERVER_ERROR, str(error))
        except Failure as failure:
            return _error(request_id, INTERNAL_ERROR, failure.problem.detail)
        except Exception:
            log.exception("a JSON-RPC request failed")
            return _error(request_id, INTERNAL_ERROR, "internal error; the server's log has the details")
        return {"jsonrpc": "2.0", "id": request_id, "result": result}

    async def _initialize(self, params: Json, player: Player | None) -> Json:
        about = {"name": self._environment.name, "version": "1.0.0"}
        return {"protocolVersion": PROTOCOL_VERSION, "capabilities": {"tools": {}}, "serverInfo": about}

    async def _ping(self, params: Json, player: Player | None) -> Json:
        return {}

    async def _list_tools(self, params: Json, player: Player | None) -> Json:
        used = self._player(params, player)
        own = [*self._environment.tools, self._environment.submit_tool]
        found = used.tools() if used is not None else [tool_spec(tool) for tool in own]
        return {"tools": [{**tool, "inputSchema": tool["input_schema"]} for tool in found]}

    async def _call_tool(self, params: Json, player: Player | None) -> Json:
        name, arguments = text_in(params, "name"), object_in(params, "arguments")
        if (used := self._player(params, player)) is not None:
            stored = self._sessions.find(params.get("session_id"))
            if player is not None or stored is None:
                return await _call(used, name, arguments)
            async with stored.lock:
                return await _call(used, name, arguments)
        used = Player(self._environment)
        try:
            return await _call(used, name, arguments)
        finally:
            await used.close()

    async def _create_session(self, params: Json, player: Player | None) -> Json:
        if player is not None:
            raise RpcError(INVALID_REQUEST, "this connection is a session already")
        session_id = secrets.token_hex(16)
        self._sessions.add(session_id, Player(self._environment))
        return {"session_id": session_id}

    async def _close_session(self, params: Json, player: Player | None) -> Json:
        session_id = text_in(params, "session_id")
        if not await self._sessions.remove(session_id):
            raise RpcError(INVALID_PARAMS, f"there is no session {session_id[:80]!r}")
        return {"session_id": session_id, "closed": True}

    def _player(self, params: Json, player: Player | None) -> Player | None:
        session_id = params.get("session_id")
        if player is not None or session_id is None:
            return player
        if (stored := self._sessions.find(session_id)) is None:
            raise RpcError(INVALID_PARAMS, f"there is no session {session_id!r:.80}")
        return stored.value


async def _call(player: Player, name: str, arguments: Json) -> Json:
    if not player.is_open:
        await player.reset({})  # MCP has no reset: the first call opens an episode for a random task
    outcome = await player.call(name, arguments)
    if outcome.problem == "tool_not_found":
        raise RpcError(INVALID_PARAMS, outcome.text)
    value: Any = outcome.text if outcome.value is None else outcome.value
    state = {"reward": outcome.reward, "done": outcome.done, "metadata": outcome.info}
    content = [{"type": "text", "text": outcome.text}]
    return {"content": content, "data": value, "isError": bool(outcome.problem), "_meta": {"openenv": state}}


def _error(request_id: str | int | None, code: int, text: str) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}
