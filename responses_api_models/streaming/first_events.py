"""Detects the event that starts a model's response. Before that event, a failed stream can be retried.

An engine can send any number of events before the first output of the model, and then abort or end the stream without
any output. The rules are the same as for complete responses (services/responses/response_validity.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from rollyard.records.errors import Failure, FailureKind
from rollyard.responses_api_models.streaming.sse import DONE, data_of, error_in
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.services.responses.response_validity import (
    check_empty,
    check_error,
    check_finish,
    check_response,
    has_content,
)

Opening = Callable[[], Callable[[bytes], bool]]
"""Creates the predicate for one stream. It returns True for the event that starts the response, and can raise
Failure."""
HOLD_S = 0.5
"""Maximum time to wait for the start of the response. It is short because callers expect an early first event even if
the response is slow."""
_LAST = ("completed", "incomplete", "failed", "cancelled")


class StartedStream:
    """A stream that briefly holds back the events before the start of the response."""

    def __init__(self, events: AsyncGenerator[bytes, None], begins: Callable[[bytes], bool]) -> None:
        self._events = events
        self._begins = begins
        self._has_started = False
        self._held: list[bytes] = []
        self._next_event: asyncio.Task[bytes] | None = None

    async def first(self) -> bytes:
        """Return the first event without checking it; empty if the stream contains none."""
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
        """Yield all events. Raises Failure if the stream ends without output from the model."""
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
    """Detects the start of the response in a stream of chat chunks."""

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
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._tokens = usage.get("completion_tokens")
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            check_error(choice)
            check_finish(choice.get("finish_reason"))
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            delta = choice.get("delta")
            if isinstance(delta, dict):
                if has_content(delta):
                    return True
                self._blank = self._blank or bool(delta.get("content"))
        return False


class ResponseStreamStart:
    """Detects the start of the response in a stream of Responses events."""

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
