"""Streams on their way through a model server, event by event, as they come.

A stream is whole when it says so: `[DONE]` in Chat Completions, a last event in Responses. One that ends without, or
breaks off, gets an error for its last event, so that no client takes it for a whole answer.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable

import orjson

from rollyard.responses_api_models.streaming.events import ResponseEvents
from rollyard.responses_api_models.streaming.sse import DONE, data_of
from rollyard.responses_api_models.upstream.answers import json_object
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.problem import to_problem
from rollyard.services.http.request import RawRequest
from rollyard.services.responses import stream_events
from rollyard.services.types import Json, Problem

log = logging.getLogger(__name__)

Teller = Callable[[Failure], Problem]
_LAST = re.compile(rb'"type": ?"(response\.(completed|incomplete|failed)|error)"|^event: ?error', re.MULTILINE)


def event_reporter(server: str, call: RawRequest) -> Teller:
    """Logs why a stream of `server` breaks off, and says it as a problem."""

    def tell(failure: Failure) -> Problem:
        log.warning("%s%s broke off in the middle of a stream: %s", server, call.path, failure)
        return to_problem(failure, server, call.path)

    return tell


async def chat(events: AsyncIterator[bytes], tell: Teller) -> AsyncIterator[bytes]:
    """A stream of chat chunks."""
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                yield event
                if data_of(event) == DONE:
                    return
        raise _stream_ended_early()
    except Failure as failure:
        yield b"data: %b\n\n" % orjson.dumps({"error": tell(failure).model_dump(mode="json")})


async def responses(events: AsyncIterator[bytes], tell: Teller) -> AsyncIterator[bytes]:
    """A stream of Responses events."""
    first = last = b""
    whole = False
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                yield event
                if event.startswith(b":"):
                    continue
                first, last = first or event, event
                whole = whole or _LAST.search(event) is not None
        if not whole:
            raise _stream_ended_early()
    except Failure as failure:
        if not whole:
            response = _object(first).get("response")
            number = _object(last).get("sequence_number", -1) + 1
            yield stream_events.encoded(stream_events.broken_off(response, tell(failure)), number)


async def converted(events: AsyncIterator[bytes], made: ResponseEvents, tell: Teller) -> AsyncIterator[bytes]:
    """A stream of chat chunks as one of Responses events."""
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                data = data_of(event)
                if data == DONE:
                    break
                if data and (known := made.chunk(json_object(data))):
                    yield known
            else:
                raise _stream_ended_early()
        yield made.end()
    except Failure as failure:
        yield made.broken_off(tell(failure))


def _stream_ended_early() -> Failure:
    return Failure(FailureKind.CONNECTION_LOST, "the engine's stream ended before its answer did")


def _object(event: bytes) -> Json:
    with contextlib.suppress(orjson.JSONDecodeError):
        value = orjson.loads(data_of(event))
        return value if isinstance(value, dict) else {}
    return {}
