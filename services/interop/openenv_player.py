"""The episode of one OpenEnv client, and the tools of an environment over MCP (JSON-RPC 2.0).

Player turns resets, steps and states into calls of an episode. JsonRpc lists and calls tools, inside a session or
without one.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from rollyard.records.errors import Failure
from rollyard.records.types import Json
from rollyard.services.interop.environment import ServedEnvironment, UnknownTask
from rollyard.services.interop.episode import Outcome, ServedEpisode
from rollyard.services.interop.served_app import InvalidBody, object_in, parse_object, text_in
from rollyard.services.interop.session_store import SessionLimit, SessionStore

_MESSAGE_FIELDS = ("message", "text", "content")


class NotReset(ValueError):
    """The client stepped before its first reset."""

    def __init__(self) -> None:
        super().__init__("no episode is open: send a reset first")


class Player:
    """Plays one episode at a time; a reset closes the episode before it."""

    def __init__(self, environment: ServedEnvironment) -> None:
        self.environment = environment
        self._episode: ServedEpisode | None = None
        self._episode_id: str | None = None

    async def reset(self, asked: Json) -> Json:
        """Open an episode for the task that the client asks for, and return the first observation.

        Raises UnknownTask or InvalidBody for an unusable request, and Failure if the environment fails.
        """
        row = self.environment.tasks.choose(asked)
        given = asked.get("episode_id")
        if given is not None and not (isinstance(given, str) and len(given) <= 255):
            raise InvalidBody(f"episode_id is {given!r:.100}; expected a string of at most 255 characters")
        await self.close()
        self._episode = episode = self.environment.episode(row)
        self._episode_id = given or secrets.token_hex(16)
        try:
            await episode.open()
        except BaseException:
            await self.close()
            raise
        tools = [tool_spec(tool) for tool in episode.tools]
        text = "\n\n".join(message["content"] for message in episode.messages)
        observed = {"text": text, "messages": episode.messages, "tools": tools}
        return {"observation": observed, "reward": None, "done": False, "metadata": {"episode_id": self._episode_id}}

    async def step(self, action: Json) -> Json:
        """Take one step. Raises InvalidBody for an action that is not of the schema, NotReset, and Failure."""
        kind = action.get("type") or _kind_of(action)
        if kind == "list_tools":
            return {"observation": {"tools": self.tools()}, "reward": None, "done": False}
        if kind == "call_tool":
            name = text_in(action, "tool_name")
            return self._observed(await self.call(name, object_in(action, "arguments")), {"tool_name": name})
        if kind == "message":
            text = next((action[name] for name in _MESSAGE_FIELDS if name in action), None)
            if not isinstance(text, str):
                raise InvalidBody(f"message is {text!r:.100}; expected a string")
            return self._observed(await self._open_episode().say(text), {})
        raise InvalidBody(f"type is {kind!r:.100}; expected call_tool, list_tools or message")

    async def call(self, name: str, arguments: Json) -> Outcome:
        """Call a tool by name, also the submit tool. Raises NotReset."""
        return await self.environment.act(self._open_episode(), name, arguments)

    @property
    def is_open(self) -> bool:
        """Whether an episode was opened and not closed; it may be over."""
        return self._episode is not None

    def tools(self) -> list[Json]:
        """Return the tools of the open episode, else those of the environment, and the one that submits an answer."""
        own = self._episode.tools if self._episode is not None else self.environment.tools
        return [tool_spec(tool) for tool in (*own, self.environment.submit_tool)]

    def state(self) -> Json:
        episode = self._episode
        return {
            "episode_id": self._episode_id,
            "step_count": episode.steps if episode else 0,
            "done": episode.over if episode else False,
        }

    async def close(self) -> None:
        episode, self._episode, self._episode_id = self._episode, None, None
        if episode is not None:
            await episode.close()

    def _open_episode(self) -> ServedEpisode:
        if self._episode is None:
            raise NotReset
        return self._episode

    def _observed(self, outcome: Outcome, about: Json) -> Json:
        error: Any = {"error_type": outcome.problem, "message": outcome.text} if outcome.problem else None
        if outcome.problem == "episode_over":
            error["error_type"] = "execution_error"
        result = outcome.text if outcome.value is None else outcome.value
        observed = {**about, "text": outcome.text, "result": result, "error": error}
        return {"observation": observed, "reward": outcome.reward, "done": outcome.done, "metadata": outcome.info}


def tool_spec(tool: Json) -> Json:
    """Return a Responses function tool as OpenEnv's Tool."""
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    return {"name": str(tool["name"]), "description": str(tool.get("description") or ""), "input_schema": schema}


def _kind_of(action: Json) -> str | None:
    if "tool_name" in action:
        return "call_tool"
    return "message" if any(name in action for name in _MESSAGE_FIELDS) else None


PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
INTERNAL_ERROR, SERVER_ERROR = -32603, -32000
PROTOCOL_VERSION = "2025-06-18"

log = logging.getLogger(__name__)


class RpcError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class JsonRpc:
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
