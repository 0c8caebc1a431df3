"""The app that serves an environment over OpenEnv's protocol.

`POST /reset` and `POST /step` use a new episode for each request, as OpenEnv's own servers do. An episode of several
steps is played over the WebSocket `/ws`; a session lives as long as its connection. Player turns resets, steps and
states into calls of an episode. JsonRpc lists and calls tools over MCP (JSON-RPC 2.0), inside a session or without one.
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
from rollyard.services.interop.environment import EpisodeOutcome, ServedEnvironment, ServedEpisode, UnknownTask
from rollyard.services.interop.served_app import (
    ERRORS,
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
    with_body,
)

VERSION = "1.0.0"
"""Version of OpenEnv's HTTP API, which `openenv validate` reads."""
log = logging.getLogger(__name__)


_TASK: Json = {"row": {"type": "object"}, "index": {"type": "integer"}, "seed": {"type": "integer"}}
_RPC: Json = {
    "jsonrpc": {"const": "2.0"},
    "id": {"type": ["string", "integer", "null"]},
    "method": {"type": "string"},
    "params": {"type": "object"},
}
"""Fields of the bodies, for the app's OpenAPI document."""


def openenv_app(environment: ServedEnvironment, *, max_sessions: int, idle_s: float) -> FastAPI:
    """Return the app. `idle_s`: after which time a session of HTTP requests without a connection is closed."""
    sessions: SessionStore[Player] = SessionStore(max_sessions, idle_s)
    rpc = JsonRpc(environment, sessions)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with sessions.open():
            yield

    app = FastAPI(
        title=environment.name, version=VERSION, docs_url=None, redoc_url=None, lifespan=lifespan, responses=ERRORS
    )
    app.state.sessions = sessions
    handle_errors(app, invalid_status=422)

    async def alone(asked: Json, action: Json | None = None) -> Json:
        """Open an episode for this request only, take a step if there is an `action`, and return the observation."""
        player = Player(environment)
        try:
            opened = await player.reset(asked)
            return opened if action is None else await player.step(action)
        finally:
            await player.close()

    @app.get("/health")
    async def health() -> Json:
        return {"status": "healthy", "sessions": len(sessions)}

    @app.get("/metadata")
    async def metadata() -> Json:
        return {"name": environment.name, "description": environment.description, "version": VERSION}

    @app.get("/schema")
    async def schema() -> Json:
        action = action_schema(turn_based=environment.turn_based)
        return {"action": action, "observation": OBSERVATION, "reset_observation": OBSERVATION, "state": STATE}

    @app.get("/state")
    async def state() -> Json:
        """Return the state of a new episode: this request belongs to no session."""
        return Player(environment).state()

    @app.post("/reset", openapi_extra=with_body(_TASK))
    async def reset(request: Request) -> Json:
        return await alone(await read_object(request))

    @app.post("/step", openapi_extra=with_body({**_TASK, "action": {"type": "object"}}, ["action"]))
    async def step(request: Request) -> Json:
        asked = await read_object(request)
        if "action" not in asked:
            raise InvalidBody("action is missing; expected an object")
        return await alone({**asked, "episode_id": None}, object_in(asked, "action"))

    @app.post("/mcp", openapi_extra=with_body(_RPC, ["method"]))
    async def mcp(request: Request) -> Json:
        return await rpc.answer(await request.body())

    @app.websocket("/ws")
    async def play(socket: WebSocket) -> None:
        """Play a new session or, with `?session_id=`, one that `openenv/session/create` opened."""
        await _serve(socket, Connections(environment, sessions, rpc), socket.query_params.get("session_id"))

    @app.websocket("/mcp")
    async def call_tools(socket: WebSocket) -> None:
        await _serve(socket, Connections(environment, sessions, rpc, only_rpc=True), None)

    add_task_routes(app, environment)
    return app


class Connections:
    """Answers the messages of the WebSocket connections of one environment. A session ends with its connection."""

    def __init__(
        self, environment: ServedEnvironment, sessions: SessionStore[Player], rpc: JsonRpc, *, only_rpc: bool = False
    ) -> None:
        """`only_rpc`: every message is a JSON-RPC request, instead of one of OpenEnv's own messages."""
        self._environment = environment
        self._sessions = sessions
        self._rpc = rpc
        self._only_rpc = only_rpc

    @contextlib.asynccontextmanager
    async def session(self, named: str | None) -> AsyncIterator[StoredSession[Player]]:
        """Open a session, or attach to the one that the client names. Raises SessionLimit or InvalidBody."""
        session_id = named or secrets.token_hex(16)
        if named is None:
            stored = self._sessions.add(session_id, Player(self._environment))
        elif (found := self._sessions.find(named)) is None:
            raise InvalidBody(f"there is no session {named[:80]!r}")
        elif found.attached:
            raise InvalidBody(f"session {named[:80]!r} has a connection already")
        else:
            stored = found
        stored.attached = True
        try:
            yield stored
        finally:
            stored.attached = False
            if named is None:
                await self._sessions.remove(session_id)

    async def answer(self, text: bytes | str, stored: StoredSession[Player]) -> Json | None:
        """Return the answer to a message; None if it ends the session."""
        if self._only_rpc:
            return await self._rpc.answer(text, stored.value)
        try:
            async with stored.lock:
                return await self._own_answer(parse_object(text), stored.value)
        except Exception as error:
            code, _, shown = error_codes(error)
            return _error(code, shown)

    def refusal(self, error: SessionLimit | InvalidBody) -> Json:
        if self._only_rpc:
            return _rpc_error(None, SERVER_ERROR, str(error))
        return _error("CAPACITY_REACHED" if isinstance(error, SessionLimit) else "SESSION_ERROR", str(error))

    async def _own_answer(self, message: Json, player: Player) -> Json | None:
        kind = message.get("type")
        if kind == "close":
            return None
        if kind in ("reset", "step"):
            act = player.reset if kind == "reset" else player.step
            return {"type": "observation", "data": await act(object_in(message, "data"))}
        if kind == "state":
            return {"type": "state", "data": player.state()}
        if kind == "mcp":
            return {"type": "mcp", "data": await self._rpc.answer_object(object_in(message, "data"), player)}
        return _error(
            "UNKNOWN_TYPE", f"there is no message type {kind!r:.100}; expected reset, step, state, mcp or close"
        )


async def _serve(socket: WebSocket, connections: Connections, named: str | None) -> None:
    await socket.accept()
    try:
        async with connections.session(named or None) as stored:
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                text = message.get("text")
                answer = await connections.answer(message.get("bytes") or b"" if text is None else text, stored)
                if answer is None:
                    break
                await _send(socket, answer)
    except (SessionLimit, InvalidBody) as error:
        await _send(socket, connections.refusal(error))
    if socket.application_state is WebSocketState.CONNECTED and socket.client_state is WebSocketState.CONNECTED:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client disconnected first
            await socket.close()


async def _send(socket: WebSocket, message: Json) -> None:
    # Tool results are read with orjson and contain no lone surrogates.
    text = orjson.dumps(message, option=orjson.OPT_NON_STR_KEYS).decode()
    try:
        await socket.send_text(text)
    except (WebSocketDisconnect, RuntimeError):
        log.info("a client disconnected before it read its answer")


def _error(code: str, text: str) -> Json:
    return {"type": "error", "data": {"message": text, "code": code}}


def error_codes(error: Exception) -> tuple[str, int, str]:
    """Return the code of an error in OpenEnv's messages, its code in JSON-RPC, and its text for the client."""
    if isinstance(error, InvalidBody) and not error.is_json:
        return "INVALID_JSON", PARSE_ERROR, str(error)
    if isinstance(error, InvalidBody | UnknownTask):
        return "VALIDATION_ERROR", INVALID_PARAMS, str(error)
    if isinstance(error, RpcError | SessionLimit):
        return "EXECUTION_ERROR", error.code if isinstance(error, RpcError) else SERVER_ERROR, str(error)
    if isinstance(error, NotReset):
        return "EXECUTION_ERROR", INTERNAL_ERROR, str(error)
    if isinstance(error, Failure):
        return "EXECUTION_ERROR", INTERNAL_ERROR, error.problem.detail
    log.error("a message of an OpenEnv client failed", exc_info=error)
    return "EXECUTION_ERROR", INTERNAL_ERROR, "internal error; the server's log has the details"


_TEXT: Json = {"type": "string"}
_OBJECT: Json = {"type": "object"}
_OBJECTS: Json = {"type": "array", "items": _OBJECT}
_METADATA: Json = {"type": "object", "additionalProperties": True}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def action_schema(*, turn_based: bool) -> Json:
    about = "For `message`: the model's text. It ends a game that is played by tools."
    fields: Json = {
        "type": {"enum": ["message"] if turn_based else ["call_tool", "list_tools", "message"]},
        "message": {**_TEXT, "description": about},
        "metadata": _METADATA,
    }
    if not turn_based:
        fields["tool_name"] = {**_TEXT, "description": "For `call_tool`: the tool's name."}
        fields["arguments"] = {**_OBJECT, "description": "For `call_tool`: the tool's arguments."}
    return {"title": "Action", "type": "object", "properties": fields, "required": ["type"]}


OBSERVATION: Json = {
    "title": "Observation",
    "type": "object",
    "properties": {
        "text": {**_TEXT, "description": "What the model reads next."},
        "messages": {**_OBJECTS, "description": "After a reset: the conversation."},
        "tools": {**_OBJECTS, "description": "After a reset or list_tools."},
        "tool_name": _TEXT,
        "result": {"description": "The tool's result."},
        "error": {**_or_null(_OBJECT), "description": "Why a call was not executed."},
        "done": {"type": "boolean"},
        "reward": _or_null({"type": "number"}),
        "metadata": _METADATA,
    },
}
STATE: Json = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": _or_null(_TEXT),
        "step_count": {"type": "integer", "minimum": 0},
        "done": {"type": "boolean"},
    },
}


_MESSAGE_FIELDS = ("message", "text", "content")


class NotReset(ValueError):
    """The client stepped before its first reset."""


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
        text = next((action[name] for name in _MESSAGE_FIELDS if name in action), None)
        kind = action.get("type") or ("call_tool" if "tool_name" in action else "message" if text is not None else None)
        if kind == "list_tools":
            return {"observation": {"tools": self.tools()}, "reward": None, "done": False}
        if kind == "call_tool":
            name = text_in(action, "tool_name")
            return self._observed(await self.call(name, object_in(action, "arguments")), {"tool_name": name})
        if kind == "message":
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
        steps, over = (self._episode.steps, self._episode.over) if self._episode else (0, False)
        return {"episode_id": self._episode_id, "step_count": steps, "done": over}

    async def close(self) -> None:
        episode, self._episode, self._episode_id = self._episode, None, None
        if episode is not None:
            await episode.close()

    def _open_episode(self) -> ServedEpisode:
        if self._episode is None:
            raise NotReset("no episode is open: send a reset first")
        return self._episode

    def _observed(self, outcome: EpisodeOutcome, about: Json) -> Json:
        kind = "execution_error" if outcome.problem == "episode_over" else outcome.problem
        error = {"error_type": kind, "message": outcome.text} if kind else None
        result = outcome.text if outcome.value is None else outcome.value
        observed = {**about, "text": outcome.text, "result": result, "error": error}
        return {"observation": observed, "reward": outcome.reward, "done": outcome.done, "metadata": outcome.info}


def tool_spec(tool: Json) -> Json:
    """Return a Responses function tool as OpenEnv's Tool."""
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    return {"name": str(tool["name"]), "description": str(tool.get("description") or ""), "input_schema": schema}


PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
INTERNAL_ERROR, SERVER_ERROR = -32603, -32000
PROTOCOL_VERSION = "2025-06-18"
_METHODS = ("initialize", "ping", "tools/list", "tools/call", "openenv/session/create", "openenv/session/close")


class RpcError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class JsonRpc:
    def __init__(self, environment: ServedEnvironment, sessions: SessionStore[Player]) -> None:
        self._environment = environment
        self._sessions = sessions

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
            if name not in _METHODS:
                raise RpcError(
                    UNKNOWN_METHOD, f"there is no method {name[:100]!r}; expected one of {', '.join(_METHODS)}"
                )
            return {"jsonrpc": "2.0", "id": request_id, "result": await self._result(name, request, player)}
        except Exception as error:
            _, code, shown = error_codes(error)
            return _rpc_error(request_id, code, shown)

    async def _result(self, method: str, request: Json, player: Player | None) -> Json:
        params = object_in(request, "params")
        if method == "initialize":
            about = {"name": self._environment.name, "version": "1.0.0"}
            return {"protocolVersion": PROTOCOL_VERSION, "capabilities": {"tools": {}}, "serverInfo": about}
        if method == "ping":
            return {}
        if method == "tools/list":
            stored = None if player else self._stored(params)
            listed = (player or (stored.value if stored else Player(self._environment))).tools()
            return {"tools": [{**tool, "inputSchema": tool["input_schema"]} for tool in listed]}
        if method == "tools/call":
            return await self._call_tool(params, player)
        if method == "openenv/session/create":
            if player is not None:
                raise RpcError(INVALID_REQUEST, "this connection is a session already")
            session_id = secrets.token_hex(16)
            self._sessions.add(session_id, Player(self._environment))
            return {"session_id": session_id}
        session_id = text_in(params, "session_id")
        if not await self._sessions.remove(session_id):
            raise RpcError(INVALID_PARAMS, f"there is no session {session_id[:80]!r}")
        return {"session_id": session_id, "closed": True}

    async def _call_tool(self, params: Json, player: Player | None) -> Json:
        name, arguments = text_in(params, "name"), object_in(params, "arguments")
        if player is not None:
            return await _call(player, name, arguments)
        if (stored := self._stored(params)) is not None:
            async with stored.lock:
                return await _call(stored.value, name, arguments)
        alone = Player(self._environment)
        try:
            return await _call(alone, name, arguments)
        finally:
            await alone.close()

    def _stored(self, params: Json) -> StoredSession[Player] | None:
        """Return the session that a request names; None if it names none. Raises RpcError if there is no such one."""
        if (session_id := params.get("session_id")) is None:
            return None
        if (stored := self._sessions.find(session_id)) is None:
            raise RpcError(INVALID_PARAMS, f"there is no session {session_id!r:.80}")
        return stored


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
