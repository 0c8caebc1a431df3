"""What the model reads of a tool call, over `POST /<tool>` or MCP (streamable HTTP).

A response of any status is text for the model, as in NeMo Gym's simple_agent: an environment rejects a model's call
with a 4xx, and its code may fail on it with a 5xx. If these were failures, a model could get another attempt with a
call that breaks the tool. Only a Failure that a server of Rollyard reports stays one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.http.client import EVENT_STREAM, IsComplete, ServerClient, Session, is_foreign
from rollyard.services.http.request import HttpResponse, raise_for_status, reported_failure
from rollyard.services.responses.response_validity import loads

_PARTS = ("input_text", "input_image", "input_file")


class ToolAnswer(NamedTuple):
    output: str | list[Json]
    """Text, or Responses content parts such as images, if the environment returned content parts."""
    done: bool


def answer_of(response: HttpResponse, server: str) -> ToolAnswer:
    """Return what the model reads of the response to `POST /<tool>`.

    Raises the Failure that the response reports, or Failure server_error for a redirect.
    """
    if response.status >= 400:
        if failure := reported_failure(response, server):
            raise failure
        return ToolAnswer(response.body.decode("utf-8", "replace"), False)
    body = raise_for_status(response, server).body
    if body.startswith(b"[") and (parts := _content_parts(body)):
        return ToolAnswer(parts, any(_is_done(part.get("text", "")) for part in parts))
    # NeMo Gym's agent passes on the body unchanged, and environments that read the conversation rely on it.
    text = body.decode("utf-8", "replace") if is_foreign(response) else _text_for_model(body)
    return text_answer(text)


def text_answer(text: str) -> ToolAnswer:
    return ToolAnswer(text, _is_done(text))


def error_answer(text: str) -> ToolAnswer:
    return ToolAnswer(orjson.dumps({"error": text}).decode(), False)


def _text_for_model(body: bytes) -> str:
    """Return a tool's result as the model reads it: a JSON string is decoded, and any other JSON stays unchanged."""
    if body.startswith(b'"'):
        with contextlib.suppress(orjson.JSONDecodeError):
            return str(orjson.loads(body))
    return body.decode("utf-8", "replace")


def _content_parts(body: bytes) -> list[Json]:
    """Return a tool's result if it is a list of content parts, which a multimodal model receives unchanged; else []."""
    if b'"input_' not in body[:64]:
        return []
    try:
        parts: list[Json] = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    return parts if all(map(_is_content_part, parts)) else []


def _is_content_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _PARTS and isinstance(part.get("text", ""), str)


def _is_done(text: str) -> bool:
    mentions = text.count('"done"')
    if not mentions or (mentions == 1 and '"done":false' in text):
        return False
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(answer, dict) and answer.get("done") is True


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
        self.tools: list[Json] = []
        self.names: frozenset[str] = frozenset()

    async def responds(self) -> bool:
        """Return True if the server at the path speaks JSON-RPC, even if it reports an error."""
        request_id, response = await self._request("initialize", _INITIALIZE)
        return response.succeeded and reply_to(request_id, response) is not None

    async def open(self) -> None:
        """Initialize the connection and list the tools. Raises Failure if the server does not, or reports an error."""
        response, result = await self._result("initialize", _INITIALIZE)
        if session_id := response.headers.get("mcp-session-id"):
            self._headers["mcp-session-id"] = session_id
        version = result.get("protocolVersion")
        self._headers["mcp-protocol-version"] = version if isinstance(version, str) else PROTOCOL_VERSION
        raise_for_status(
            await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"}, lambda _: True),
            self._session.server,
        )
        self.tools = await self._list_tools()
        self.names = frozenset(tool["name"] for tool in self.tools)

    async def _list_tools(self) -> list[Json]:
        found: list[Json] = []
        cursor = None
        for _ in range(MAX_PAGES):
            params: Json = {} if cursor is None else {"cursor": cursor}
            _, result = await self._result("tools/list", params)
            listed = result.get("tools")
            if not isinstance(listed, list) or not all(
                isinstance(tool, dict) and isinstance(tool.get("name"), str) and tool["name"] for tool in listed
            ):
                raise self._malformed("tools/list", f"{listed!r:.200}; expected a list of tools with a name")
            for tool in listed:
                schema, described = tool.get("inputSchema"), tool.get("description")
                parameters = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
                made: Json = {"type": "function", "name": tool["name"], "parameters": parameters, "strict": False}
                found.append({**made, "description": described} if isinstance(described, str) else made)
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


DEFAULT_PATH = "/mcp"


async def open_tools(session: Session, metadata: Any, timeout_s: float) -> McpClient:
    """Open the MCP server that `/seed_session` announced, and list its tools.

    `metadata` is the `mcp` of its response: `{"url_path": "/mcp", "headers": {...}}`. Raises Failure if it is invalid,
    or if the server does not list its tools.
    """
    given = metadata if isinstance(metadata, dict) else None
    path = (given or {}).get("url_path", DEFAULT_PATH)
    headers = {} if (announced := (given or {}).get("headers")) is None else announced
    texts = isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values())
    if given is None or not isinstance(path, str) or not texts:
        # The headers are a secret of the session.
        detail = f"/seed_session returned mcp with url_path {path!r:.100}; expected {{url_path: text, headers: object}}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=session.server)
    client = McpClient(session, f"/{path.lstrip('/')}", headers, timeout_s)
    try:
        await client.open()
    except Failure:
        with contextlib.suppress(Failure):
            await client.close()
        raise
    return client


class McpProbe:
    """Whether an environment serves MCP at `/mcp`, which it need not announce. One probe serves all episodes."""

    def __init__(self, client: ServerClient, server: str) -> None:
        self._client = client
        self._server = server
        self._lock = asyncio.Lock()
        self._found: bool | None = None

    async def found(self, timeout_s: float) -> bool:
        async with self._lock:
            if self._found is None:
                # A session of its own: an environment that takes every path for a tool may record the call.
                session = Session(self._client, self._server)
                try:
                    self._found = await McpClient(session, DEFAULT_PATH, {}, timeout_s).responds()
                except Failure as failure:
                    if failure.kind in (FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST):
                        raise
                    self._found = False
        return self._found


def reply_to(request_id: int, response: HttpResponse) -> Json | None:
    """Return the message that answers the request; None if there is none.

    A stream may hold notifications, progress reports and the server's own requests before the answer.
    """
    for message in _messages(response):
        if "method" not in message and ("result" in message or "error" in message) and message.get("id") == request_id:
            return message
    return None


def _messages(response: HttpResponse) -> Iterator[Json]:
    """Yield the JSON objects in the body, also those of a batch. Anything else is skipped, as MCP's clients do."""
    body = response.body.decode("utf-8", "replace")
    is_stream = response.headers.get("content-type", "").lower().startswith(EVENT_STREAM)
    for text in event_data(body) if is_stream else (body,):
        try:
            value: Any = loads(text.encode())
        except ValueError:
            continue
        yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict))


def event_data(text: str) -> Iterator[str]:
    """Yield the data of each event. An event ends at an empty line, and its data may extend over several lines."""
    data: list[str] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if not line:
            if data:
                yield "\n".join(data)
            data = []
        elif line.startswith("data"):
            name, _, value = line.partition(":")
            if name == "data":
                data.append(value.removeprefix(" "))
    if data:  # a server may close the connection without the last empty line
        yield "\n".join(data)


def answer_of_result(result: Any) -> ToolAnswer:
    """Return a tool's text, or content parts if it returned images. Structured content is used if there is no other."""
    if not isinstance(result, dict):
        return text_answer(_dumped(result))
    content, structured = result.get("content"), result.get("structuredContent")
    parts = [_part(part) for part in content] if isinstance(content, list) else []
    failed = result.get("isError") is True
    if not parts:
        if structured is not None:
            return text_answer(_dumped(structured))
        return error_answer("The tool failed without a message.") if failed else ToolAnswer("", False)
    done = not failed and isinstance(structured, dict) and structured.get("done") is True
    if any(part["type"] != "input_text" for part in parts):
        return ToolAnswer(parts, done)
    answer = text_answer("\n".join(part["text"] for part in parts))
    return ToolAnswer(answer.output, not failed and (done or answer.done))


def _part(part: Any) -> Json:
    if not isinstance(part, dict):
        return _text(_dumped(part))
    kind, data = part.get("type"), part.get("data")
    if kind == "text":
        return _text(str(part.get("text", "")))
    if kind == "image" and isinstance(data, str):
        return _image(part.get("mimeType"), data)
    if kind == "audio":
        return _text(f"[audio, {part.get('mimeType')}]")  # Responses has no part for the audio of a tool
    if kind == "resource_link":
        return _text(f"{part.get('name')}: {part.get('uri')}")
    if kind == "resource" and isinstance(resource := part.get("resource"), dict):
        blob, media_type = resource.get("blob"), resource.get("mimeType")
        if isinstance(text := resource.get("text"), str):
            return _text(text)
        if isinstance(blob, str) and isinstance(media_type, str) and media_type.startswith("image/"):
            return _image(media_type, blob)
        return _text(f"[{media_type}: {resource.get('uri')}]")
    return _text(_dumped(part))


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _image(media_type: object, data: str) -> Json:
    url = f"data:{media_type if isinstance(media_type, str) else 'image/png'};base64,{data}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _dumped(value: Any) -> str:
    return orjson.dumps(value).decode()
