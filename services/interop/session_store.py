"""Keeps the sessions of clients that name them by id, and ends those that are idle."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class SessionLimit(Exception):
    """Too many sessions are open. The message states the limit."""


@dataclass
class StoredSession(Generic[T]):
    """A session and its lock: a call holds the lock, so that calls of one session never overlap."""

    value: T
    touched: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    attached: bool = False
    """Whether a connection holds the session: it then ends with the connection, whatever its idle time."""


class SessionStore(Generic[T]):
    def __init__(self, limit: int, idle_s: float) -> None:
        self.limit = limit
        self._idle_s = idle_s
        self._sessions: dict[str, StoredSession[T]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    def add(self, session_id: str, value: T) -> StoredSession[T]:
        """Store a session. Raises SessionLimit if too many are open, and ValueError if the id is taken."""
        if session_id in self._sessions:
            raise ValueError(f"session {session_id!r:.80} already exists")
        if len(self._sessions) >= self.limit:
            raise SessionLimit(f"{len(self._sessions)} sessions are open; the limit is {self.limit} (--max-sessions)")
        self._sessions[session_id] = stored = StoredSession(value, time.monotonic())
        return stored

    def find(self, session_id: object) -> StoredSession[T] | None:
        """Return the session and restart its idle time; None if it is not open."""
        stored = self._sessions.get(session_id) if isinstance(session_id, str) else None
        if stored is not None:
            stored.touched = time.monotonic()
        return stored

    async def remove(self, session_id: str) -> bool:
        """End a session, even if the caller is cancelled. Return whether it was open."""
        stored = self._sessions.pop(session_id, None)
        if stored is None:
            return False
        closing = asyncio.create_task(stored.value.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)
        return True

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """End idle sessions while the block runs, and all others after it."""
        reaping = asyncio.create_task(self.reap())
        try:
            yield
        finally:
            reaping.cancel()
            await self.close()

    async def reap(self) -> None:
        """End idle sessions. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(min(self._idle_s / 4, 30.0))
            now = time.monotonic()
            for session_id, stored in list(self._sessions.items()):
                if now - stored.touched > self._idle_s and not (stored.attached or stored.lock.locked()):
                    await self.remove(session_id)

    async def close(self) -> None:
        await asyncio.gather(*(self.remove(session_id) for session_id in list(self._sessions)))
        await asyncio.gather(*self._closing)
