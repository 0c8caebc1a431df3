"""Forwards or converts streams event by event.

A stream is complete if it contains its final event: `[DONE]` in Chat Completions, a terminal event in Responses. If a
stream ends without it, an error event is added, so clients do not mistake it for a complete response.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from rollyard.responses_api_models.streaming.events import ResponseEvents
from rollyard.responses_api_models.streaming.sse import DONE, data_of
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.problem import to_problem
from rollyard.services.http.request import RawRequest
from rollyard.services.io.json_values import items, mapping
from rollyard.services.responses import stream_events
from rollyard.services.responses.response_validity import CALLED, calls_of, lost_call
from rollyard.services.responses.tool_calls import normalize_calls
from rollyard.services.types import Json, Problem

log = logging.getLogger(__name__)

Reporter = Callable[[Failure], Problem]
_LAST = re.compile(rb'"type": ?"(response\.(completed|incomplete|failed)|error)"|^event: ?error', re.MULTILINE)


def event_reporter(server: str, call: RawRequest) -> Reporter:
    """Return a function that logs why a stream of `server` failed, and converts the failure to a problem document."""

    def report(failure: Failure) -> Problem:
        log.warning("%s%s: a stream was interrupted: %s", server, call.path, failure)
        return to_problem(failure, server, call.path)

    return report


async def chat(events: AsyncIterator[bytes], report: Reporter, requested: int = 1) -> AsyncIterator[bytes]:
    """Forward a stream of chat chunks; if it is interrupted or loses a tool call, end it with an error event.

    `requested`: the number of choices that the request asked for.
    """
    calls = _StreamedCalls(requested)
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if b"tool_" in event or b"function_call" in event:
                    event = calls.check(event)
                yield event
                if data_of(event) == DONE:
                    return
        raise _stream_ended_early()
    except Failure as failure:
        yield b"data: %b\n\n" % orjson.dumps({"error": report(failure).model_dump(mode="json")})


class _StreamedCalls:
    """Finds tool calls that a stream of chat chunks loses."""

    def __init__(self, requested: int) -> None:
        self._requested = requested
        self._with_calls: set[Any] = set()
        """Indices of the choices with a tool call."""

    def check(self, event: bytes) -> bytes:
        """Return the event, with arguments that are text.

        Raises Failure malformed_answer if a call is in a choice that was not requested, or missing at its end.
        """
        chunk, changed = _object(event), False
        for found in items(chunk.get("choices")):
            choice = mapping(found)
            changed = normalize_calls(mapping(choice.get("delta")), absent="") or changed
            index, reason = choice.get("index") or 0, choice.get("finish_reason")
            if calls_of(mapping(choice.get("delta"))):
                if index and self._requested == 1:
                    raise lost_call(None, found)
                self._with_calls.add(index)
            if reason in CALLED and index not in self._with_calls:
                raise lost_call(reason, found)
        return b"data: %b\n\n" % orjson.dumps(chunk) if changed else event


async def responses(events: AsyncIterator[bytes], report: Reporter) -> AsyncIterator[bytes]:
    """Forward a stream of Responses events; if it is interrupted, end it with an error event."""
    first = last = b""
    complete = False
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                yield event
                if event.startswith(b":"):
                    continue
                first, last = first or event, event
                complete = complete or _LAST.search(event) is not None
        if not complete:
            raise _stream_ended_early()
    except Failure as failure:
        if not complete:
            response = _object(first).get("response")
            number = _object(last).get("sequence_number", -1) + 1
            yield stream_events.encoded(stream_events.broken_off(response, report(failure)), number)


async def converted(events: AsyncIterator[bytes], converter: ResponseEvents, report: Reporter) -> AsyncIterator[bytes]:
    """Convert a stream of chat chunks to Responses events."""
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                data = data_of(event)
                if data == DONE:
                    break
                if data and (known := converter.chunk(json_object(data))):
                    yield known
            else:
                raise _stream_ended_early()
        yield converter.end()
    except Failure as failure:
        yield converter.broken_off(report(failure))


def _stream_ended_early() -> Failure:
    return Failure(FailureKind.CONNECTION_LOST, "the engine's stream ended before its response was complete")


def _object(event: bytes) -> Json:
    with contextlib.suppress(orjson.JSONDecodeError):
        value = orjson.loads(data_of(event))
        return value if isinstance(value, dict) else {}
    return {}
