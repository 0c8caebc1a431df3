"""The app that serves an environment over OpenEnv's protocol.

`POST /reset` and `POST /step` use a new episode for each request, as OpenEnv's own servers do. An episode of several
steps is played over the WebSocket `/ws`; a session lives as long as its connection. Player turns resets, steps and
states into calls of an episode. JsonRpc lists and calls tools over MCP (JSON-RPC 2.0), inside a session or without one.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from rollyard.records.errors import Failure
from rollyard.records.types import Json
from rollyard.services.interop.environment import ServedEnvironment, UnknownTask
from rollyard.services.interop.episode import EpisodeOutcome, ServedEpisode
from rollyard.services.interop.served_app import (
    InvalidBody,
    SessionLimit,
    SessionStore,
    StoredSession,
    add_task_routes,
    handle_errors,
    object_in,
    parse_object,
    read_object,
    text_in,
)

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

    async def call(self, name: str, arguments: Json) -> EpisodeOutcome:
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

    def _observed(self, outcome: EpisodeOutcome, about: Json) -> Json:
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
            return _rpc_error(None, INVALID_REQUEST if error.is_json else PARSE_ERROR, str(error))
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
            return _rpc_error(request_id, error.code, str(error))
        except (InvalidBody, UnknownTask) as error:
            return _rpc_error(request_id, INVALID_PARAMS, str(error))
        except SessionLimit as error:
            return _rpc_error(request_id, SERVER_ERROR, str(error))
        except Failure as failure:
            return _rpc_error(request_id, INTERNAL_ERROR, failure.problem.detail)
        except Exception:
            log.exception("a JSON-RPC request failed")
            return _rpc_error(request_id, INTERNAL_ERROR, "internal error; the server's log has the details")
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


def _rpc_error(request_id: str | int | None, code: int, text: str) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}
