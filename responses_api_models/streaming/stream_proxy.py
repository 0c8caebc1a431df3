"""Forwards or converts streams event by event.

A stream is complete if it contains its final event: `[DONE]` in Chat Completions, a terminal event in Responses. If a
stream ends without it, an error event is added, so clients do not mistake it for a complete response.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.json_values import mapping
from rollyard.records.types import Json, Problem
from rollyard.responses_api_models.streaming.events import ResponseEvents
from rollyard.responses_api_models.upstream.sse import DONE, DONE_EVENT, data_of, error_of, payload_of
from rollyard.services.http.problem import to_problem
from rollyard.services.http.request import RawRequest
from rollyard.services.responses import stream_events
from rollyard.services.responses.response_validity import (
    calls_of,
    check_error,
    check_finish,
    ends_with_calls,
    lost_call,
    malformed,
)
from rollyard.services.responses.tool_calls import normalize_calls

log = logging.getLogger(__name__)

Reporter = Callable[[Failure], Problem]
_LAST = ("response.completed", "response.incomplete", "response.failed", "error")
_CUT_OFF = (FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT)
"""What happens to a stream that is not closed properly. The response may nevertheless be complete."""


def event_reporter(server: str, call: RawRequest) -> Reporter:
    """Return a function that logs why a stream of `server` failed, and converts the failure to a problem document."""

    def report(failure: Failure) -> Problem:
        log.warning("%s%s: a stream was interrupted: %s", server, call.path, failure)
        return to_problem(failure, server, call.path)

    return report


async def chat(events: AsyncIterator[bytes], report: Reporter, requested: int = 1) -> AsyncIterator[bytes]:
    """Forward a stream of chat chunks; if it is interrupted or loses a tool call, end it with an error event.

    It is complete when every choice has a finish_reason, also if the engine then closes it without `[DONE]`.
    `requested`: the number of choices that the request asked for.
    """
    choices = _Choices(requested)
    try:
        try:
            async with contextlib.aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    data = data_of(event)
                    if data == DONE:
                        choices.ended = True
                        break
                    yield choices.read(event, data) if data else event
        except Failure as failure:
            if failure.kind not in _CUT_OFF or not choices.complete:
                raise
        if not choices.complete:
            raise _stream_ended_early()
        yield DONE_EVENT
    except Failure as failure:
        yield b"data: %b\n\n" % orjson.dumps({"error": report(failure).model_dump(mode="json")})


class _Choices:
    """The choices of a chat stream: which of them are finished, and which call a tool."""

    def __init__(self, requested: int) -> None:
        self._requested = requested
        self._finished: dict[str, bool] = {}
        self._with_calls: set[str] = set()
        self.ended = False
        """Whether the engine sent `[DONE]`. It ends streams of an engine's own format, which have no choices."""

    @property
    def complete(self) -> bool:
        return all(self._finished.values()) if self._finished else self.ended

    def read(self, event: bytes, data: bytes) -> bytes:
        """Return the event of a chunk, with arguments of tool calls that are text.

        Raises Failure if the engine aborted a choice, or if a call is in a choice that was not requested or missing.
        """
        chunk, changed = _payload(event, data), False
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                raise malformed("has a malformed chunk", chunk)
            check_error(choice)
            reason, delta = choice.get("finish_reason"), mapping(choice.get("delta"))
            check_finish(reason)
            index = str(choice.get("index") or 0)
            self._finished[index] = bool(reason) or self._finished.get(index, False)
            changed = normalize_calls(delta, is_delta=True) or changed
            if calls_of(delta):
                if index != "0" and self._requested == 1:
                    raise lost_call(None, choice)
                self._with_calls.add(index)
            if ends_with_calls(reason) and index not in self._with_calls:
                raise lost_call(reason, choice)
        return b"data: %b\n\n" % orjson.dumps(chunk) if changed else event


async def responses(events: AsyncIterator[bytes], report: Reporter) -> AsyncIterator[bytes]:
    """Forward a stream of Responses events; if it is interrupted, end it with an error event."""
    first: Json = {}
    last: Json = {}
    complete = False
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                data = data_of(event)
                if data == DONE and not complete:
                    break  # clients would read no further
                if data and not complete:
                    payload = payload_of(event, data)
                    complete = payload.get("type") in _LAST
                    if not complete and b"error" in event:
                        _check_error(event, payload)
                    first, last = first or payload, payload
                yield event
        if not complete:
            raise _stream_ended_early()
    except Failure as failure:
        if not complete:
            number = last.get("sequence_number")
            final = stream_events.broken_off(first.get("response"), report(failure))
            yield stream_events.encoded(final, number + 1 if isinstance(number, int) else 0)


async def converted(events: AsyncIterator[bytes], converter: ResponseEvents, report: Reporter) -> AsyncIterator[bytes]:
    """Convert a stream of chat chunks to Responses events."""
    try:
        try:
            async with contextlib.aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    data = data_of(event)
                    if data == DONE:
                        break
                    if data and (known := converter.chunk(_payload(event, data))):
                        yield known
        except Failure as failure:
            if failure.kind not in _CUT_OFF or not converter.finished:
                raise
        yield converter.end()
    except Failure as failure:
        yield converter.broken_off(report(failure))


def _payload(event: bytes, data: bytes) -> Json:
    """Parse the data of an event. Raises Failure if it is not a JSON object, or reports an error."""
    payload = payload_of(event, data)
    if b"error" in event:
        _check_error(event, payload)
    return payload


def _check_error(event: bytes, payload: Json) -> None:
    if error := error_of(event, payload):
        detail = f"the engine aborted its response: {error.get('message') or error}"
        raise Failure(FailureKind.UPSTREAM_ERROR, detail[:500])


def _stream_ended_early() -> Failure:
    return Failure(FailureKind.CONNECTION_LOST, "the engine's stream ended before its response was complete")
