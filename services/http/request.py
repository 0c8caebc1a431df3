"""RawRequest and RawResponse: a request to a hot route and its response, as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.json_values import json_kind
from rollyard.records.types import Json
from rollyard.services.http.transport import Receive

MAX_BODY_BYTES = 256 * 1024 * 1024


def read_object(body: bytes) -> Json:
    """Parse a request's body as a JSON object. Raises Failure bad_request if it is anything else."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Failure(FailureKind.BAD_REQUEST, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Failure(FailureKind.BAD_REQUEST, f"the body is {json_kind(value)}; expected a JSON object")
    return value


@dataclass(slots=True)
class RawRequest:
    """A request to a hot route: the raw body, and headers that are looked up on demand."""

    path: str
    headers: Iterable[tuple[bytes, bytes]]
    body: bytes
    query: bytes = b""
    """The query string, without the question mark."""

    def header(self, name: bytes) -> str | None:
        """Return the value of the header with this lower-case name, or None if it is absent."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return None

    def json(self) -> Json:
        return read_object(self.body)


@dataclass(slots=True)
class RawResponse:
    """The response of a handler that returns anything other than JSON with status 200."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"
    stream: AsyncIterator[bytes] | None = None
    """If set, this stream is sent instead of `body`."""


Handler = Callable[[RawRequest], Awaitable[bytes | RawResponse]]


async def read_body(receive: Receive) -> bytes:
    """Return the complete body. Raises Failure if it is too large or the caller disconnects."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Failure(FailureKind.CANCELLED, "the caller disconnected before sending its request")
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    chunks, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Failure(FailureKind.CANCELLED, "the caller disconnected in the middle of its request")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > MAX_BODY_BYTES:
            raise Failure(FailureKind.BAD_REQUEST, f"the body is larger than {MAX_BODY_BYTES} bytes", status=413)
    return b"".join(chunks)


async def cancel_on_disconnect(receive: Receive, task: asyncio.Task[Any], disconnected: list[bool]) -> None:
    """Wait until the caller disconnects, then append True to `disconnected` and cancel `task`."""
    while (await receive())["type"] != "http.disconnect":
        pass
    disconnected.append(True)
    task.cancel()
