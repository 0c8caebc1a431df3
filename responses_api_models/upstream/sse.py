"""Parses server-sent events from a body that arrives in arbitrary chunks, and detects the event that starts a model's
response. Before that event, a failed stream can be retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json, items, mapping
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.services.responses.response_validity import (
    check_empty,
    check_error,
    check_finish,
    check_response,
    has_content,
)

DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"
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
    return event.lstrip().startswith(_FIELDS)


def data_of(event: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def error_in(event: bytes) -> Json | None:
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
            detail = f"the stream contains an event that is not UTF-8 ({error})"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail) from error
        value = json_object(data)  # accepts halves of surrogate pairs, and reports anything else
    return value if isinstance(value, dict) else json_object(data)


Opening = Callable[[], Callable[[bytes], bool]]
"""Creates the predicate for one stream. It returns True for the event that starts the response, and can raise
Failure."""
HOLD_S = 0.5
"""Maximum time to wait for the start of the response. It is short because callers expect an early first event even if
the response is slow."""
_LAST = ("completed", "incomplete", "failed", "cancelled")


class StartedStream:
    """A stream that briefly holds back the events before the start of the response.

    An engine can send any number of events before the first output of the model, and then abort or end the stream
    without any output. The rules are the same as for complete responses (services/responses/response_validity.py).
    """

    def __init__(self, events: AsyncGenerator[bytes, None], begins: Callable[[bytes], bool]) -> None:
        self._events = events
        self._begins = begins
        self._has_started = False
        self._held: list[bytes] = []
        self._next_event: asyncio.Task[bytes] | None = None

    async def first(self) -> bytes:
        self._held = [await anext(self._events, b"")]
        return self._held[0]

    async def hold(self) -> None:
        """Wait up to HOLD_S for the start of the response. Raises Failure if the stream fails or ends first."""
        self._check_event(self._held[0])
        deadline = time.monotonic() + HOLD_S
        while not self._has_started:
            self._next_event = asyncio.ensure_future(anext(self._events, b""))
            try:
                done, _ = await asyncio.wait({self._next_event}, timeout=deadline - time.monotonic())
            except asyncio.CancelledError:
                await self._stop()
                raise
            if not done:
                return
            event, self._next_event = self._next_event.result(), None
            self._check_event(event)
            self._held.append(event)

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            for event in self._held:
                yield event
            if self._next_event is not None:
                event = await self._next_event
                self._next_event = None
                self._check_event(event)
                yield event
            async for event in self._events:
                self._check_event(event)
                yield event
            if not self._has_started:
                self._check_event(b"")
        finally:
            await self._stop()
            await self._events.aclose()

    def _check_event(self, event: bytes) -> None:
        if self._has_started:
            return
        if not event:
            raise Failure(FailureKind.CONNECTION_LOST, "the engine's stream ended before its response started")
        if error := error_in(event):
            detail = f"the engine aborted its response: {error.get('message') or error}"
            raise Failure(FailureKind.UPSTREAM_ERROR, detail[:500])
        self._has_started = self._begins(event)

    async def _stop(self) -> None:
        if self._next_event is not None:
            self._next_event.cancel()
            await asyncio.gather(self._next_event, return_exceptions=True)
            self._next_event = None


class ChatStreamStart:
    def __init__(self) -> None:
        self._finish_reason: Any = None
        self._tokens: Any = None
        self._blank = False

    def __call__(self, event: bytes) -> bool:
        """Return True if the response has started. Raises Failure if it ends without output from the model."""
        data = data_of(event)
        if data == DONE:
            check_empty(self._finish_reason, self._tokens, "[DONE]", blank=self._blank)
            return True
        if not data:
            return False
        chunk = json_object(data)
        if usage := mapping(chunk.get("usage")):
            self._tokens = usage.get("completion_tokens")
        for choice in map(mapping, items(chunk.get("choices"))):
            check_error(choice)
            check_finish(choice.get("finish_reason"))
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            delta = mapping(choice.get("delta"))
            if has_content(delta):
                return True
            self._blank = self._blank or bool(delta.get("content"))
        return False


class ResponseStreamStart:
    def __call__(self, event: bytes) -> bool:
        """Return True if the response has started. Raises Failure if it ends without output from the model."""
        data = data_of(event)
        if not data:
            return False
        payload = json_object(data)
        kind = str(payload.get("type"))
        if isinstance(response := payload.get("response"), dict) and kind.rpartition(".")[2] in _LAST:
            check_response(response)
            return True
        return kind.endswith(".delta") and bool(payload.get("delta"))


def chat_chunks(completion: Json, with_usage: bool = False) -> bytes:
    """Return a finished completion as the body of a Chat Completions stream, with each text in a single chunk.

    Nothing is sent before the completion is finished, but clients that require a stream can then use the server.
    `stream_events.whole` does the same for the Responses API; it is in `services` because agents also use it.
    """
    base = {key: value for key, value in completion.items() if key not in ("choices", "usage")}
    base["object"] = "chat.completion.chunk"
    pieces: list[bytes] = []

    def send(choices: list[Json], **extra: Any) -> None:
        pieces.append(b"data: %b\n\n" % orjson.dumps({**base, "choices": choices, **extra}))

    for choice in completion["choices"]:
        index, message = choice["index"], choice["message"]
        delta = {key: value for key, value in message.items() if key != "tool_calls" and value is not None}
        fields = {key: value for key, value in choice.items() if key not in ("message", "finish_reason")}
        send([{**fields, "delta": delta, "finish_reason": None}])
        for number, call in enumerate(message.get("tool_calls") or ()):
            tool_calls = [{**call, "index": number}]
            send([{"index": index, "delta": {"tool_calls": tool_calls}, "finish_reason": None}])
        send([{"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}])
    if with_usage:
        send([], usage=completion.get("usage"))
    pieces.append(DONE_EVENT)
    return b"".join(pieces)
