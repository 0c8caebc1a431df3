"""Openings of streams: from which event on a stream is the model's. Before it a broken one can be asked for again.

An engine may send any number of events before the model says anything, and then break off, or end without a word. The
rule is that of whole answers (services/responses/response_validity.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from rollyard.responses_api_models.streaming.sse import DONE, data_of, error_in
from rollyard.responses_api_models.upstream.answers import json_object
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.responses.response_validity import (
    check_empty,
    check_error,
    check_finish,
    check_response,
    has_content,
)

Opening = Callable[[], Callable[[bytes], bool]]
"""Makes what is asked of each event of one stream: does the answer begin with it? It may raise a Failure."""
HOLD_S = 0.5
"""Longest wait for the beginning: callers want the first event of an answer that takes its time."""
_LAST = ("completed", "incomplete", "failed", "cancelled")


class StartedStream:
    """A stream's events, those before the answer begins held back for a moment."""

    def __init__(self, events: AsyncGenerator[bytes, None], begins: Callable[[bytes], bool]) -> None:
        self._events = events
        self._begins = begins
        self._begun = False
        self._held: list[bytes] = []
        self._coming: asyncio.Task[bytes] | None = None

    async def first(self) -> bytes:
        """The first event, empty without any; it is not looked at yet."""
        self._held = [await anext(self._events, b"")]
        return self._held[0]

    async def hold(self) -> None:
        """Wait a moment for the beginning. Raises Failure when the stream breaks off or ends before it."""
        self._look(self._held[0])
        give_up = time.monotonic() + HOLD_S
        while not self._begun:
            self._coming = asyncio.ensure_future(anext(self._events, b""))
            try:
                done, _ = await asyncio.wait({self._coming}, timeout=give_up - time.monotonic())
            except asyncio.CancelledError:
                await self._stop()
                raise
            if not done:
                return
            event, self._coming = self._coming.result(), None
            self._look(event)
            self._held.append(event)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """All events, from the first on. Raises Failure when they end and are no turn of the model."""
        try:
            for event in self._held:
                yield event
            if self._coming is not None:
                event = await self._coming
                self._coming = None
                self._look(event)
                yield event
            async for event in self._events:
                self._look(event)
                yield event
            if not self._begun:
                self._look(b"")
        finally:
            await self._stop()
            await self._events.aclose()

    def _look(self, event: bytes) -> None:
        if self._begun:
            return
        if not event:
            raise Failure(FailureKind.CONNECTION_LOST, "the engine's stream ended before its answer began")
        if error := error_in(event):
            told = f"the engine broke its answer off: {error.get('message') or error}"
            raise Failure(FailureKind.UPSTREAM_ERROR, told[:500])
        self._begun = self._begins(event)

    async def _stop(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.gather(self._coming, return_exceptions=True)
            self._coming = None


class ChatStreamStart:
    """Of one stream of chat chunks."""

    def __init__(self) -> None:
        self._finish_reason: Any = None
        self._tokens: Any = None
        self._blank = False

    def __call__(self, event: bytes) -> bool:
        """True when the answer has begun. Raises Failure when the stream ends and is no turn of the model."""
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
    """Of one stream of Responses events."""

    def __call__(self, event: bytes) -> bool:
        """True when the answer has begun. Raises Failure when the stream ends and is no turn of the model."""
        data = data_of(event)
        if not data:
            return False
        read = json_object(data)
        kind = str(read.get("type"))
        if isinstance(response := read.get("response"), dict) and kind.rpartition(".")[2] in _LAST:
            check_response(response)
            return True
        return kind.endswith(".delta") and bool(read.get("delta"))
