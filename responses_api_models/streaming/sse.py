"""Parses server-sent events from a body that arrives in arbitrary chunks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.upstream.response_parsing import json_object

DONE = b"[DONE]"
"""Data of the event that ends a Chat Completions stream."""
EVENT_BYTES = 16 * 1024 * 1024
"""Maximum size of an event; the last event of a Responses stream contains the complete response."""
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_ERROR_LINE = re.compile(rb"^event: ?error\s*$", re.MULTILINE)
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


async def split_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the events verbatim, each including the blank line that ends it.

    Raises Failure connection_lost if the body ends in the middle of an event or an event is too long.
    """
    rest = b""
    async with contextlib.aclosing(chunks):  # type: ignore[type-var]
        async for chunk in chunks:
            begin, searched = 0, max(len(rest) - 3, 0)
            rest += chunk
            while end := _BLANK_LINE.search(rest, max(searched, begin)):
                yield rest[begin : end.end()]
                begin = end.end()
            rest = rest[begin:]
            if len(rest) > EVENT_BYTES:
                raise Failure(FailureKind.CONNECTION_LOST, f"an event in the stream is longer than {EVENT_BYTES} bytes")
    if rest.strip() == b"data: " + DONE:
        yield rest.strip() + b"\n\n"
    elif rest.strip():
        excerpt = rest[-200:].decode("utf-8", "replace").strip()
        raise Failure(FailureKind.CONNECTION_LOST, f"the stream ended in the middle of an event: {excerpt}")


def is_event(event: bytes) -> bool:
    """Return True for a server-sent event, False for anything else that an endpoint returned instead."""
    return event.lstrip().startswith(_FIELDS)


def data_of(event: bytes) -> bytes:
    """Return the data of an event; empty for a comment."""
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def error_in(event: bytes) -> Json | None:
    """Return the error that an event contains, in the format of either OpenAI API; None if it contains none."""
    if b"error" not in event:
        return None
    try:
        return error_of(event, orjson.loads(data_of(event)))
    except orjson.JSONDecodeError:
        return {"message": data_of(event).decode("utf-8", "replace")} if _ERROR_LINE.search(event) else None


def error_of(event: bytes, data: Any) -> Json | None:
    """Return the error that an event with this parsed data contains; None if it contains none.

    It is in `error`, or the data is the error: of `event: error`, or with `error` as its `object` or `type`.
    """
    error = data.get("error") if isinstance(data, dict) else None
    if isinstance(error, dict | str) and error:
        return error if isinstance(error, dict) else {"message": error}
    if _ERROR_LINE.search(event) or (isinstance(data, dict) and "error" in (data.get("object"), data.get("type"))):
        return data if isinstance(data, dict) else {"message": str(data)}
    return None


def payload_of(event: bytes, data: bytes) -> Json:
    """Parse the data of an event as a JSON object.

    Raises Failure malformed_answer if it is anything else, also if it is not UTF-8: clients could not read it.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise Failure(
                FailureKind.MALFORMED_ANSWER, f"the stream contains an event that is not UTF-8 ({error})"
            ) from error
        value = json_object(data)  # accepts halves of surrogate pairs, and reports anything else
    return value if isinstance(value, dict) else json_object(data)
