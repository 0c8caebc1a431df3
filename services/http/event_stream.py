"""Reads a response that may be a stream of server-sent events, up to the event that the caller waits for.

A server may keep such a stream open after its answer, for as long as it likes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import cast

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.http.limits import RUN_LIMITS
from rollyard.services.http.transport import HttpResponse, Transport

EVENT_STREAM = "text/event-stream"
IsComplete = Callable[[HttpResponse], bool]
"""Returns whether the events so far, in the body, include the one that the caller waits for."""
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


async def post_until(
    transport: Transport, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, is_complete: IsComplete
) -> HttpResponse:
    """POST and return the response. Of an event stream, what follows after `is_complete` is not waited for.

    Raises the failures of `Transport.stream`, and malformed_answer if the body is too large.
    """
    response, chunks = await transport.stream("POST", url, body, headers, timeout_s)
    has_events = response.headers.get("content-type", "").lower().startswith(EVENT_STREAM)
    read = bytearray()

    def so_far() -> HttpResponse:
        return HttpResponse(response.status, response.headers, bytes(read), response.cookies)

    async with aclosing(cast(AsyncGenerator[bytes], chunks)):
        if has_events and is_complete(so_far()):  # whatever the server sends
            return so_far()
        async for chunk in chunks:
            read += chunk
            if len(read) > RUN_LIMITS.body_bytes:
                detail = f"the response of {url} is larger than {RUN_LIMITS.body_bytes} bytes"
                raise Failure(FailureKind.MALFORMED_ANSWER, detail)
            if has_events and read.endswith(_EVENT_ENDS) and is_complete(so_far()):
                break
    return so_far()
