"""The server that the programs call: for each episode a base URL with the policy's API, and the environment's tools.

    {episode}/v1/chat/completions, /v1/responses, /v1/messages    the policy, recorded by its model server
    {episode}/mcp                                                 the tools, over MCP (streamable HTTP)

It listens on this host alone. A request needs the key of its episode, as a bearer token or as `x-api-key`.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson
from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from rollyard.agents.tools import PROTOCOL_VERSION, ToolAnswer
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json, items, mapping
from rollyard.services.http.request import HttpResponse, RawRequest, RawResponse
from rollyard.services.responses import api_shapes
from rollyard.services.server.app import Context, Server
from rollyard.services.server.openapi import Shape
from rollyard.services.server.settings import ServerSettings

_PATH = re.compile(r"/([0-9a-f]{32})(/.*)")
_MODEL_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
_MODEL_SHAPES = (api_shapes.CHAT, api_shapes.RESPONSES, api_shapes.MESSAGES, api_shapes.TOKEN_COUNT)
_METHOD_NOT_FOUND, _INVALID_PARAMS = -32601, -32602


class McpMessage(TypedDict, total=False):
    jsonrpc: str
    id: str | int
    """Absent in a notification."""
    method: str
    params: Json


@dataclass(frozen=True, slots=True)
class Visitor:
    """The program of one episode."""

    key: str
    ask: Callable[[str, bytes], Awaitable[HttpResponse]]
    """Sends a model call to a path of the policy's API. Raises Failure, which the program reads."""
    tools: list[Json]
    """Function tools of the Responses API."""
    use: Callable[[str, Json], Awaitable[ToolAnswer]]
    """Calls a tool with its arguments. Raises Failure, which the program reads."""


class ProgramEndpoint(Server):
    def __init__(self, context: Context) -> None:
        super().__init__(ServerSettings(), context)
        self._visitors: dict[str, Visitor] = {}
        shapes = (*zip(_MODEL_PATHS, _MODEL_SHAPES, strict=True), ("/mcp", Shape(McpMessage)))
        self.route_rest(
            self._answer,
            cancellable=True,
            shapes={f"/{{episode}}{path}": replace(shape, errors=api_shapes.ApiError) for path, shape in shapes},
        )
        self.app.router.routes.clear()  # /metrics and the like need no key, and are of all episodes
        self.app.get("/{episode}/v1/models", response_model=None)(self._models)
        # MCP's clients ask for a stream of the server's own messages, and end their connections.
        self.app.api_route("/{episode}/mcp", methods=["GET", "DELETE"], include_in_schema=False)(_post_only)

    def admit(self, episode: str, visitor: Visitor) -> None:
        self._visitors[episode] = visitor

    def dismiss(self, episode: str) -> None:
        self._visitors.pop(episode, None)

    async def _models(self, episode: str, request: Request) -> JSONResponse:
        self._visitor(episode, request.headers.get("authorization"), request.headers.get("x-api-key"))
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "rollyard"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _answer(self, call: RawRequest) -> RawResponse:
        """Answer a program's model call, or its message to the environment's MCP server."""
        try:
            found = _PATH.fullmatch(call.path)
            episode, path = found.groups() if found else ("", call.path)
            visitor = self._visitor(episode, call.header(b"authorization"), call.header(b"x-api-key"))
            if path == "/mcp":
                return await _mcp_answer(visitor, call.json())
            if path in _MODEL_PATHS:
                answer = await visitor.ask(path, call.body)
                return RawResponse(answer.body, content_type=answer.headers["content-type"].encode())
            expected = f"{', '.join(_MODEL_PATHS)} or /mcp"
            raise Failure(FailureKind.BAD_REQUEST, f"there is no {path[:100]!r}; expected {expected}", status=404)
        except Failure as failure:
            return _error(failure)

    def _visitor(self, episode: str, authorization: str | None, api_key: str | None) -> Visitor:
        """Raise Failure unauthorized unless the episode is running and the key is its own."""
        visitor = self._visitors.get(episode)
        key = api_key or (authorization or "").removeprefix("Bearer ")
        if visitor is None or not hmac.compare_digest(key.encode(), visitor.key.encode()):
            detail = "the key is not that of a running episode; expected Authorization: Bearer {api_key}"
            raise Failure(FailureKind.UNAUTHORIZED, detail)
        return visitor


async def _post_only(episode: str) -> None:
    raise HTTPException(405, "Method Not Allowed", {"Allow": "POST"})


def _error(failure: Failure) -> RawResponse:
    """Return an error that clients of OpenAI and of Anthropic can read."""
    problem = failure.problem
    error = {"type": failure.kind, "message": problem.detail, "code": getattr(problem, "code", None), "param": None}
    return RawResponse(orjson.dumps({"type": "error", "error": error}), problem.status)


async def _mcp_answer(visitor: Visitor, message: Json) -> RawResponse:
    if "id" not in message:  # a notification
        return RawResponse(status=202)
    method, params = message.get("method"), mapping(message.get("params"))
    result: Json = {}
    if method == "initialize":
        version = params.get("protocolVersion")
        result = {
            "protocolVersion": version if isinstance(version, str) else PROTOCOL_VERSION,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "environment", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": [_declared(tool) for tool in visitor.tools]}
    elif method == "tools/call":
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            return _rpc(
                message, error={"code": _INVALID_PARAMS, "message": "expected a name, and arguments as an object"}
            )
        result = {"content": _contents((await visitor.use(name, arguments or {})).output), "isError": False}
    elif method != "ping":
        return _rpc(message, error={"code": _METHOD_NOT_FOUND, "message": f"the method {method!r:.100} is unknown"})
    return _rpc(message, result=result)


def _rpc(message: Json, **answer: Any) -> RawResponse:
    return RawResponse(orjson.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}))


def _declared(tool: Json) -> Json:
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    return {"name": tool["name"], "description": tool.get("description") or "", "inputSchema": schema}


def _contents(output: str | list[Json]) -> list[Json]:
    parts = [{"type": "input_text", "text": output}] if isinstance(output, str) else items(output)
    return [_content(part) for part in parts]


def _content(part: Json) -> Json:
    """Convert a content part of the Responses API. Only images that contain their data have an equivalent."""
    image = re.fullmatch(r"data:([\w/.+-]+);base64,(.*)", str(part.get("image_url")), re.DOTALL)
    if image:
        return {"type": "image", "mimeType": image[1], "data": image[2]}
    text = part.get("text")
    return {"type": "text", "text": text if isinstance(text, str) else orjson.dumps(part).decode()}
