"""A scripted model endpoint with arbitrary responses: a behaviour gets each request and its connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, cast

import orjson

HEAD_END = b"\r\n\r\n"
TOOL_OUTPUTS = b'"tool_call_id"'
"""Occurs in a request once per tool output; inside a JSON string its quotes would be escaped."""


@dataclass(frozen=True, slots=True)
class Request:
    number: int
    head: bytes
    body: bytes

    @property
    def path(self) -> bytes:
        return self.head.split(b" ", 2)[1]

    @property
    def turn(self) -> int:
        """Number of tool outputs in the conversation."""
        return self.body.count(TOOL_OUTPUTS)


Behaviour = Callable[[Request, asyncio.Transport], None]
"""Responds to a request on its connection, immediately, later or never."""


class Endpoint:
    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests = 0
        self.calls = 0
        """Requests for a model response."""
        self.connections: set[asyncio.Transport] = set()
        self.url = ""
        self._server: asyncio.Server | None = None

    @contextlib.asynccontextmanager
    async def up(self, port: int = 0) -> AsyncIterator[Endpoint]:
        await self.listen(port)
        try:
            yield self
        finally:
            await self.close()

    async def listen(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", port, backlog=4096)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for transport in list(self.connections):
            transport.abort()


class _Connection(asyncio.Protocol):
    """One kept-alive connection with sequential requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._endpoint.connections.add(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        assert self._transport is not None
        self._endpoint.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        buffer = self._buffer + data if self._buffer else data
        while (head_end := buffer.find(HEAD_END)) >= 0:
            end = head_end + 4 + content_length(buffer[:head_end])
            if len(buffer) < end:
                break
            head, body, buffer = buffer[:head_end], buffer[head_end + 4 : end], buffer[end:]
            self._endpoint.requests += 1
            request = Request(self._endpoint.requests, head, body)
            if head.startswith((b"POST /v1/chat/completions", b"POST /v1/responses")):
                self._endpoint.calls += 1
            self._endpoint.behaviour(request, self._transport)
        self._buffer = buffer


def content_length(head: bytes) -> int:
    at = head.lower().find(b"\r\ncontent-length:")
    return 0 if at < 0 else int(head[at + 17 :].split(b"\r\n", 1)[0])


def http(body: Any, status: int = 200, headers: str = "", kind: str = "application/json") -> bytes:
    """An HTTP response; a body that is not bytes is encoded as JSON."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = f"HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\n{headers}content-length: {len(data)}\r\n\r\n"
    return lines.encode() + data


def completion(message: dict[str, Any], finish_reason: Any = None) -> dict[str, Any]:
    reason = finish_reason or ("tool_calls" if message.get("tool_calls") else "stop")
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "script",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}],
        "usage": {"prompt_tokens": 70, "completion_tokens": 30, "total_tokens": 100},
    }


def tool_call(name: str, arguments: Any, number: int = 0) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": text}}
    return {"content": None, "tool_calls": [call]}


def scripted(turn: int, moves: int = 4) -> dict[str, Any]:
    """The scripted response after `turn` tool outputs: no move, then Up and Down alternately, then a final text."""
    if turn > moves:
        return completion({"content": "That is as far as I go."})
    actions = [] if turn == 0 else [("Up", "Down")[turn % 2]]
    return completion(tool_call("step", {"actions": actions}, turn))


class Script:
    """Sends the scripted responses, built in advance: `moves` moves after the first call without a move."""

    def __init__(self, moves: int = 4, latency_s: float = 0.0) -> None:
        self.latency_s = latency_s
        self._answers = [http(scripted(turn, moves)) for turn in range(moves + 2)]
        self._models = http({"object": "list", "data": [{"id": "script", "object": "model"}]})

    def answer(self, request: Request) -> bytes:
        if not request.head.startswith(b"POST"):
            return self._models
        return self._answers[min(request.turn, len(self._answers) - 1)]

    def __call__(self, request: Request, transport: asyncio.Transport) -> None:
        later(transport, self.latency_s, self.answer(request))


def later(transport: asyncio.Transport, seconds: float, data: bytes) -> None:
    """Write `data` after `seconds` if the connection is still open."""
    if seconds <= 0:
        transport.write(data)
        return

    def write() -> None:
        if not transport.is_closing():
            transport.write(data)

    asyncio.get_running_loop().call_later(seconds, write)
