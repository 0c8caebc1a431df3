"""McpClient: calls the tools of an environment over MCP's streamable HTTP transport, within an episode's session.

The requests are sent in the session of the episode, with its cookies, and with the headers that `/seed_session`
returned for MCP. A server may give the connection an id of its own (`Mcp-Session-Id`), which each request repeats.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import orjson

from rollyard.agents.mcp_tools.messages import reply_to
from rollyard.agents.mcp_tools.tool_results import answer_of_result
from rollyard.agents.tool_answers import ToolAnswer, answer_of, error_answer
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.http.event_stream import EVENT_STREAM, IsComplete
from rollyard.services.http.response_failures import raise_for_status
from rollyard.services.http.session import Session
from rollyard.services.http.transport import HttpResponse

PROTOCOL_VERSION = "2025-06-18"
CLOSE_TIMEOUT_S = 10.0
_INITIALIZE: Json = {
    "protocolVersion": PROTOCOL_VERSION,
    "capabilities": {},
    "clientInfo": {"name": "rollyard", "version": "1"},
}
MAX_PAGES = 1000
"""Maximum number of pages of a list of tools. A server that repeats its cursor would otherwise never end."""
_NOT_OF_THE_MODEL = frozenset({-32700, -32600, -32601})
"""JSON-RPC codes of errors in the protocol: invalid JSON, an invalid request, an unknown method."""


class McpClient:
    """One connection to an MCP server. Call `open` first."""

    def __init__(self, session: Session, path: str, headers: dict[str, str], timeout_s: float) -> None:
        self._session = session
        self._path = path
        self._headers = {
            **{name.lower(): value for name, value in headers.items()},
            "content-type": "application/json",
            "accept": f"application/json, {EVENT_STREAM}",
        }
        self._timeout_s = timeout_s
        self._last_id = 0

    async def responds(self) -> bool:
        """Return True if the server at the path speaks JSON-RPC, even if it reports an error."""
        request_id, response = await self._request("initialize", _INITIALIZE)
        return response.succeeded and reply_to(request_id, response) is not None

    async def open(self) -> None:
        """Initialize the connection. Raises Failure if the server does not, or reports an error."""
        response, result = await self._result("initialize", _INITIALIZE)
        if session_id := response.headers.get("mcp-session-id"):
            self._headers["mcp-session-id"] = session_id
        version = result.get("protocolVersion")
        self._headers["mcp-protocol-version"] = version if isinstance(version, str) else PROTOCOL_VERSION
        await self._notify("notifications/initialized")

    async def tools(self) -> list[Json]:
        """Return the server's tools as function tools of the Responses API. Raises Failure if they cannot be listed."""
        found: list[Json] = []
        cursor = None
        for _ in range(MAX_PAGES):
            params: Json = {} if cursor is None else {"cursor": cursor}
            _, result = await self._result("tools/list", params)
            listed = result.get("tools")
            if not isinstance(listed, list) or not all(_is_tool(tool) for tool in listed):
                raise self._malformed("tools/list", f"{listed!r:.200}; expected a list of tools with a name")
            found += [_function_tool(tool) for tool in listed]
            if not isinstance(cursor := result.get("nextCursor"), str) or not cursor:
                return found
        raise self._malformed("tools/list", f"more than {MAX_PAGES} pages")

    async def call(self, name: str, arguments: Json) -> ToolAnswer:
        """Call a tool and return what the model reads. The tool's errors and rejections are text for the model."""
        params = {"name": name, "arguments": arguments}
        request_id, response = await self._request("tools/call", params)
        if response.status >= 400:
            return answer_of(response, self._session.server)
        message = self._message("tools/call", request_id, response)
        if (error := message.get("error")) is None:
            return answer_of_result(message["result"])
        details = error if isinstance(error, dict) else {}
        if details.get("code") in _NOT_OF_THE_MODEL:
            raise self._error("tools/call", error)
        return error_answer(str(details.get("message") or error))

    async def close(self) -> None:
        """End the connection if the server keeps one. Raises Failure if the server cannot be reached."""
        if "mcp-session-id" in self._headers:
            await self._session.delete(self._path, min(self._timeout_s, CLOSE_TIMEOUT_S), self._headers)

    async def _result(self, method: str, params: Json) -> tuple[HttpResponse, Json]:
        request_id, response = await self._request(method, params)
        message = self._message(method, request_id, raise_for_status(response, self._session.server))
        if (error := message.get("error")) is not None:
            raise self._error(method, error)
        if not isinstance(result := message["result"], dict):
            raise self._malformed(method, f"the result {result!r:.200}; expected an object")
        return response, result

    async def _request(self, method: str, params: Json) -> tuple[int, HttpResponse]:
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        request_id = self._last_id
        return request_id, await self._send(message, lambda response: reply_to(request_id, response) is not None)

    async def _notify(self, method: str) -> None:
        raise_for_status(await self._send({"jsonrpc": "2.0", "method": method}, lambda _: True), self._session.server)

    async def _send(self, message: Json, is_complete: IsComplete) -> HttpResponse:
        body = orjson.dumps(message)
        response = await self._session.send(self._path, body, self._timeout_s, self._headers, is_complete)
        # Servers built with Starlette redirect /mcp to /mcp/ without having handled the request.
        location = response.headers.get("location", "")
        if response.status in (307, 308) and urlsplit(location).path == (slashed := f"{self._path}/"):
            self._path = slashed
            response = await self._session.send(self._path, body, self._timeout_s, self._headers, is_complete)
        if response.status == 404 and "mcp-session-id" in self._headers:
            detail = f"{self._path} no longer knows the connection of this episode: {response.body[:300]!r}"
            raise Failure(FailureKind.SESSION_LOST, detail, server=self._session.server, upstream_status=404)
        return response

    def _message(self, method: str, request_id: int, response: HttpResponse) -> Json:
        message = reply_to(request_id, raise_for_status(response, self._session.server))
        if message is None:
            raise self._malformed(method, f"{response.body[:200].decode('utf-8', 'replace')!r}; expected a reply to it")
        return message

    def _error(self, method: str, error: object) -> Failure:
        detail = f"{self._path} responded to {method} with the JSON-RPC error {error!r:.500}"
        return Failure(FailureKind.SERVER_ERROR, detail, server=self._session.server)

    def _malformed(self, method: str, found: str) -> Failure:
        detail = f"{self._path} responded to {method} with {found}"
        return Failure(FailureKind.MALFORMED_ANSWER, detail, server=self._session.server)


def _is_tool(tool: object) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str) and tool["name"] != ""


def _function_tool(tool: Json) -> Json:
    schema = tool.get("inputSchema")
    parameters = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    described = tool.get("description")
    made: Json = {"type": "function", "name": tool["name"], "parameters": parameters, "strict": False}
    return {**made, "description": described} if isinstance(described, str) else made
