"""Sessions: which episode a cookie means, who forgot to close one, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from services.call import Call
from services.errors import Failure, FailureKind

log = logging.getLogger(__name__)

COOKIE = "rollyard_session"
CLOSE_PATIENCE_S = 5.0
"""How long the end of an episode waits for a call that works on it."""


class Closable(Protocol):
    """What a session holds."""

    async def close(self) -> None:
        """Give back what it holds; called exactly once."""


T = TypeVar("T", bound=Closable)


@dataclass(slots=True)
class OpenEpisode(Generic[T]):
    """One open episode. `turn` is held while a call works on it: two calls of one episode never interleave."""

    id: str
    episode: T
    touched: float
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Sessions(Generic[T]):
    """The open episodes of one server process, found by a cookie signed with the run's secret."""

    def __init__(self, secret: str, *, idle_s: float, limit: int) -> None:
        self._key = secret.encode()
        self._idle_s = idle_s
        self._limit = limit
        self._open: dict[str, OpenEpisode[T]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, episode: T) -> OpenEpisode[T]:
        """A new session. Raises Failure overloaded when too many are open."""
        if len(self._open) >= self._limit:
            detail = f"{len(self._open)} sessions are open, which is the limit: does somebody forget to close?"
            raise Failure(FailureKind.OVERLOADED, detail)
        session = OpenEpisode(secrets.token_hex(12), episode, time.monotonic())
        self._open[session.id] = session
        return session

    def cookie(self, session: OpenEpisode[T]) -> bytes:
        """Value of the Set-Cookie header that names `session`."""
        return f"{COOKIE}={session.id}.{self._sign(session.id)}; Path=/; HttpOnly; SameSite=Lax".encode()

    def named(self, call: Call) -> str:
        """The session id in the call's cookie. Raises Failure session_lost when there is none signed by this run."""
        for pair in (call.header(b"cookie") or "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE:
                session_id, _, signature = value.partition(".")
                if hmac.compare_digest(signature.encode(), self._sign(session_id).encode()):
                    return session_id
        raise Failure(FailureKind.SESSION_LOST, "no session: the cookie of /seed_session is missing or of another run")

    def find(self, call: Call) -> OpenEpisode[T]:
        """The open session of the call's cookie. Raises Failure session_lost when it is not open."""
        session = self._open.get(self.named(call))
        if session is None:
            raise _not_open()
        session.touched = time.monotonic()
        return session

    @contextlib.asynccontextmanager
    async def turn(self, call: Call) -> AsyncIterator[OpenEpisode[T]]:
        """The call's session, for this call alone. Raises Failure session_lost, also when it ends while waiting."""
        session = self.find(call)
        async with session.turn:
            if session.id not in self._open:
                raise _not_open()
            yield session

    async def close(self, session_id: str) -> None:
        """End the session; one that is not open is fine."""
        session = self._open.pop(session_id, None)
        if session is None:
            return
        alone = True
        try:
            async with asyncio.timeout(CLOSE_PATIENCE_S):
                await session.turn.acquire()
        except TimeoutError:
            alone = False
            log.warning("session %s is closed although a call has worked on it for %g s", session.id, CLOSE_PATIENCE_S)
        try:
            await session.episode.close()
        except Exception:
            log.exception("closing an episode failed")
        finally:
            if alone:
                session.turn.release()

    async def close_all(self) -> None:
        """End every session."""
        for session_id in list(self._open):
            await self.close(session_id)

    async def reap(self) -> None:
        """For ever: close sessions that nobody touched for longer than the idle limit."""
        while True:
            await asyncio.sleep(min(self._idle_s / 4, 30.0))
            for session in list(self._open.values()):
                if time.monotonic() - session.touched > self._idle_s and not session.turn.locked():
                    log.warning("session %s was idle for more than %g s: closed", session.id, self._idle_s)
                    await self.close(session.id)

    def _sign(self, session_id: str) -> str:
        return hmac.digest(self._key, session_id.encode(), "sha256").hex()[:32]


def _not_open() -> Failure:
    detail = "the session is not open: it was closed, passed its idle limit, or its server restarted"
    return Failure(FailureKind.SESSION_LOST, detail)
