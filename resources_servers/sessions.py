"""Sessions: which episode a cookie means, which one an agent wants ended, and which ones were forgotten.

The id of a session travels in a cookie signed with the run's secret. An agent of this stack chooses the id itself and
sends it with `/seed_session` (SESSION_HEADER): it can then end a session whose cookie never reached it. An end that
arrives before its session leaves a tombstone, so that the late `/seed_session` opens nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rollyard.resources_servers.session_cleanup import TURN_WAIT_S, Closable, SessionCleanup
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.client import SESSION_HEADER
from rollyard.services.http.request import RawRequest

log = logging.getLogger(__name__)

COOKIE = "rollyard_session"
CLOSE_WAIT_S = 5.0
"""How long the caller of `close` waits for the end, which goes on without it."""
STOP_S = 5.0
"""How long a server that stops waits for all ends together; its process is ended soon after."""
TOMBSTONES = 10_000
TOMBSTONE_S = 900.0
"""Longer than a `/seed_session` may wait in a busy server."""
_NAME = re.compile(r"[0-9A-Za-z_-]{16,64}")

T = TypeVar("T", bound=Closable)
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class OpenEpisode(Generic[T]):
    """One open episode. `turn` is held while a call works on it: two calls of one episode never interleave."""

    id: str
    episode: T
    touched: float
    turn_based: bool = False
    """Opened by `/reset`: it takes the model's messages at `/step` and has no tools."""
    named: bool = False
    """Its agent is one of this stack, chose its id and will end it."""
    owner: str = ""
    """Instance of the agent that opened it, where it is one of this stack."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    setup: asyncio.Task[Any] | None = None
    """The work that makes it ready, until that is done."""


class Sessions(Generic[T]):
    """The open episodes of one server process."""

    def __init__(self, secret: str, *, idle_s: float, limit: int) -> None:
        self._key = secret.encode()
        self._idle_s = idle_s
        self._limit = limit
        self._open: dict[str, OpenEpisode[T]] = {}
        self._endings = SessionCleanup()
        self._tombstones: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._endings)

    @property
    def open_now(self) -> list[OpenEpisode[T]]:
        """All that are open, oldest first."""
        return list(self._open.values())

    def open(
        self, make: Callable[[], T], *, name: str | None = None, owner: str = "", turn_based: bool = False
    ) -> OpenEpisode[T]:
        """A new session, under the name that an agent chose for it. `make` is called only if there is room for one.

        Raises Failure: overloaded, session_lost for a name that was ended before, bad_request for an unusable one.
        """
        if name is not None:
            self._check_name(name)
        if len(self) >= self._limit:
            detail = f"{len(self)} sessions are open, the limit is {self._limit} (max_sessions): are they ever closed?"
            raise Failure(FailureKind.OVERLOADED, detail)
        session = OpenEpisode(
            name or secrets.token_hex(16), make(), time.monotonic(), turn_based, named=name is not None, owner=owner
        )
        self._open[session.id] = session
        return session

    async def set_up(self, session: OpenEpisode[T], work: Coroutine[Any, Any, R]) -> R:
        """The result of the work that makes the session ready; a session that cannot be set up does not stay open.

        `close` ends the work, too.
        """
        try:
            async with session.turn:
                session.setup = setup = asyncio.create_task(work)
                result = await setup
        except BaseException as error:
            ended = session.id not in self._open
            own = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and own is not None and own.cancelling():
                self.end(session.id)
                raise
            await self.close(session.id)
            if ended:
                raise _not_open() from error
            if isinstance(error, asyncio.CancelledError):
                raise Failure(FailureKind.SERVER_ERROR, "the environment cancelled its own set-up") from error
            raise
        session.setup = None
        if session.id not in self._open:
            raise _not_open()
        session.touched = time.monotonic()
        return result

    def cookie(self, session: OpenEpisode[T]) -> bytes:
        """Value of the Set-Cookie header that names `session`."""
        return f"{COOKIE}={session.id}.{self._sign(session.id)}; Path=/; HttpOnly; SameSite=Lax".encode()

    def find(self, call: RawRequest) -> OpenEpisode[T]:
        """The open session of the call's cookie. Raises Failure session_lost when it is not open."""
        session = self._open.get(self._named(call))
        if session is None:
            raise _not_open()
        session.touched = time.monotonic()
        return session

    @contextlib.asynccontextmanager
    async def turn(self, session: OpenEpisode[T]) -> AsyncIterator[None]:
        """The session for one call alone. Raises Failure session_lost when it ends while the call waits."""
        async with session.turn:
            if session.id not in self._open:
                raise _not_open()
            try:
                yield
            finally:
                session.touched = time.monotonic()

    def end(self, session_id: str, wait_s: float = TURN_WAIT_S) -> asyncio.Task[None] | None:
        """Begin to end the session; the task of its end, None where it is not open."""
        session = self._open.pop(session_id, None)
        if session is None:
            return None
        if session.setup is not None:
            session.setup.cancel()
        return self._endings.begin(session.id, session.episode, session.turn, wait_s)

    async def close(self, session_id: str) -> None:
        """End the session; one that is not open is fine. The end goes on when the caller is cancelled or tired."""
        if (ending := self.end(session_id)) is not None:
            await asyncio.wait({ending}, timeout=CLOSE_WAIT_S)

    async def close_for(self, call: RawRequest) -> None:
        """End the session of the call's cookie, or the one of the name that its agent chose, even before it begins."""
        name = call.header(SESSION_HEADER.encode())
        if name is None or COOKIE in (call.header(b"cookie") or ""):
            await self.close(self._named(call))
        elif name in self._open:
            await self.close(name)
        elif _NAME.fullmatch(name):
            self._tombstones[name] = time.monotonic()
            if len(self._tombstones) > TOMBSTONES:
                self._tombstones.popitem(last=False)

    async def close_all(self) -> None:
        """End every session, within a deadline."""
        for session_id in list(self._open):
            self.end(session_id, wait_s=STOP_S / 5)
        await self._endings.settle(STOP_S)

    async def reap(self) -> None:
        """For ever: end sessions that were not touched for longer than the idle limit."""
        while True:
            await asyncio.sleep(min(self._idle_s / 4, 30.0))
            now = time.monotonic()
            for session in self.open_now:
                # A call that works on it is a use, but none is waited for by its agent for twice that long.
                limit_s = self._idle_s * (2 if session.turn.locked() else 1)
                if now - session.touched > limit_s:
                    log.warning("session %s was idle for more than %g s: closed", session.id, limit_s)
                    self.end(session.id)
            while self._tombstones and now - next(iter(self._tombstones.values())) > TOMBSTONE_S:
                self._tombstones.popitem(last=False)

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            detail = f"{SESSION_HEADER} is {name[:80]!r}; 16 to 64 letters, digits, _ or - are expected"
            raise Failure(FailureKind.BAD_REQUEST, detail)
        if name in self._open or name in self._tombstones:
            state = "open already" if name in self._open else "closed before it began"
            raise Failure(FailureKind.SESSION_LOST, f"the session {name} is {state}")

    def _named(self, call: RawRequest) -> str:
        for pair in (call.header(b"cookie") or "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE:
                session_id, _, signature = value.partition(".")
                if hmac.compare_digest(signature.encode(), self._sign(session_id).encode()):
                    return session_id
        raise Failure(FailureKind.SESSION_LOST, "no session: the cookie of /seed_session is missing or of another run")

    def _sign(self, session_id: str) -> str:
        return hmac.digest(self._key, session_id.encode(), "sha256").hex()[:32]


def _not_open() -> Failure:
    detail = "the session is not open: it was closed, passed its idle limit, or its server restarted"
    return Failure(FailureKind.SESSION_LOST, detail)
