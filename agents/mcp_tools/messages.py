"""JSON-RPC messages in the body of an MCP server's response: one JSON value, or a stream of server-sent events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollyard.records.types import Json
from rollyard.services.http.event_stream import EVENT_STREAM
from rollyard.services.http.transport import HttpResponse
from rollyard.services.responses.lenient_json import loads


def reply_to(request_id: int, response: HttpResponse) -> Json | None:
    """Return the message that answers the request; None if there is none.

    A stream may hold notifications, progress reports and the server's own requests before the answer.
    """
    for message in _messages(response):
        if "method" not in message and ("result" in message or "error" in message) and message.get("id") == request_id:
            return message
    return None


def _messages(response: HttpResponse) -> Iterator[Json]:
    if response.headers.get("content-type", "").lower().startswith(EVENT_STREAM):
        texts: Iterator[str] = event_data(response.body.decode("utf-8", "replace"))
    else:
        texts = iter([response.body.decode("utf-8", "replace")])
    for text in texts:
        yield from _objects(text)


def _objects(text: str) -> Iterator[Json]:
    """Yield the JSON object in `text`, or those of a batch. Anything else is skipped, as MCP's clients do."""
    try:
        value: Any = loads(text.encode())
    except ValueError:
        return
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, dict):
            yield one


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
