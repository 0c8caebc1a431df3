"""Manages the open sessions of a server: finds them by cookie, ends them on request, and closes idle ones.

The session id is sent in a cookie that is signed with the run's secret. A Rollyard agent chooses the id itself and
sends it with `/seed_session` (SESSION_HEADER), so it can end a session even if the cookie never arrived. A close that
arrives before its session is opened leaves a tombstone, so the late `/seed_session` is rejected.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.resources_servers.environment import Environment
from rollyard.services.http.client import SESSION_HEADER
from rollyard.services.http.request import RawRequest
from rollyard.services.server.app import PLUGIN_EXITS, described

log = logging.getLogger(__name__)

COOKIE = b"rollyard_session"
CLOSE_WAIT_S = 5.0
"""How long `close` waits for the cleanup, which continues in the background."""
STOP_S = 5.0
"""How long a stopping server waits for the cleanup of all sessions. Its process is killed soon afterwards."""
TURN_WAIT_S = 5.0
"""How long the cleanup of an episode waits for a running call."""
CLOSE_S = 30.0
"""How long an environment's `close` may take before it is cancelled."""
MAX_PARALLEL = 256
"""Maximum number of environments that are closed at the same time."""
TOMBSTONES = 10_000
TOMBSTONE_S = 900.0
"""How long tombstones are kept. Must exceed the time that a `/seed_session` request can wait in a busy server."""
_NAME = re.compile(r"[0-9A-Za-z_-]{16,64}")

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class OpenEpisode:
    """One open episode. A call enters it (`async with session`) to have it to itself, so that calls never interleave.

    Entering raises Failure session_lost if the session ends while the call waits.
    """

    id: str
    cookie: bytes
    """The id and the run's signature of it, as clients send them back."""
    episode: Environment[Any]
    touched: float
    turn_based: bool = False
    """Whether it was opened by `/reset`: it then accepts the model's messages at `/step` and has no tools."""
    named: bool = False
    """Whether a Rollyard agent chose the id and will end the session."""
    owner: str = ""
    """Instance id of the Rollyard agent that opened the session; empty for other clients."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    row: Json = field(default_factory=dict)
    """The dataset row."""
    verified: bool = False
    """Whether a client other than Rollyard's agents has received a verdict and made no other call since then."""
    setup: asyncio.Task[Any] | None = None
    """The set-up task while it is running."""
    program: asyncio.Future[Any] | None = None
    """An agent's program in the episode's box while it is running."""
    ended: bool = False

    async def __aenter__(self) -> None:
        await self.turn.acquire()
        if self.ended:
            self.turn.release()
            raise _not_open()

    async def __aexit__(self, *error: object) -> None:
        self.touched = time.monotonic()
        self.turn.release()


class Sessions:
    def __init__(self, secret: str, *, idle_s: float, limit: int, verified_idle_s: float | None = None) -> None:
        """`verified_idle_s`: the idle limit of sessions that are `verified`; default: `idle_s`."""
        self._key = hashlib.blake2b(secret.encode()).digest()
        self._idle_s = idle_s
        self._verified_idle_s = idle_s if verified_idle_s is None else min(idle_s, verified_idle_s)
        self._limit = limit
        self._open: dict[bytes, OpenEpisode] = {}
        """By cookie, which a request names as a whole: it need not be parsed, nor its signature checked."""
        self._cleanup = SessionCleanup()
        self._tombstones: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._cleanup)

    @property
    def failed_closes(self) -> int:
        return self._cleanup.failed

    @property
    def open_now(self) -> list[OpenEpisode]:
        return list(self._open.values())

    def open(
        self,
        make: Callable[[], Environment[Any]],
        row: Json | None = None,
        *,
        name: str | None = None,
        owner: str = "",
        turn_based: bool = False,
    ) -> OpenEpisode:
        """Open a session for the episode that `make` creates from `row`. If the agent chose a `name`, it becomes the
        session's id.

        Raises Failure: overloaded if too many sessions are open, session_lost if the name was used before, bad_request
        if the name is invalid.
        """
        session_id = name or secrets.token_hex(16)
        cookie = self._cookie(session_id.encode())
        if name is not None:
            self._check_name(name, cookie)
        if len(self) >= self._limit:
            detail = f"{len(self)} sessions are open; the limit is {self._limit} (max_sessions)"
            raise Failure(FailureKind.OVERLOADED, f"{detail}. Raise it, or check that agents close their sessions")
        session = OpenEpisode(
            session_id,
            cookie,
            make(),
            time.monotonic(),
            turn_based,
            named=name is not None,
            owner=owner,
            row={} if row is None else row,
        )
        self._open[cookie] = session
        return session

    async def set_up(self, session: OpenEpisode, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run the set-up `work` and return its result. If it fails, the session is closed. `close` cancels it."""
        try:
            async with session.turn:
                session.setup = setup = asyncio.create_task(work())
                result = await setup
        except BaseException as error:
            ended = session.ended
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                self.end(session)
                raise
            await self.close(session)
            if ended:
                raise _not_open() from error
            if isinstance(error, asyncio.CancelledError):
                raise Failure(FailureKind.SERVER_ERROR, "the environment cancelled its own set-up") from error
            raise
        session.setup = None
        if session.ended:
            raise _not_open()
        session.touched = time.monotonic()
        return result

    def find(self, call: RawRequest) -> OpenEpisode:
        """Return the session that the call's cookie identifies. Raises Failure session_lost if it is not open."""
        session = self._open.get(call.headers.get(b"cookie", b"")) or self._find_among(call)
        if session is None:
            raise _not_open()
        session.touched = time.monotonic()
        session.verified = False
        return session

    def end(self, session: OpenEpisode, wait_s: float = TURN_WAIT_S) -> asyncio.Task[None] | None:
        """Start ending the session. Returns the cleanup task, or None if the session is not open or has no cleanup."""
        if session.ended:
            return None
        session.ended = True
        del self._open[session.cookie]
        if session.setup is not None:
            session.setup.cancel()
        elif type(session.episode).close is Environment.close and not session.turn.locked():
            return None
        return self._cleanup.begin(session.id, session.episode, session.turn, wait_s)

    async def close(self, session: OpenEpisode) -> None:
        """End the session if it is open. The cleanup continues if the caller is cancelled or stops waiting."""
        if (ending := self.end(session)) is not None:
            await asyncio.wait({ending}, timeout=CLOSE_WAIT_S)

    async def close_for(self, call: RawRequest) -> None:
        """End the session that the call's cookie identifies.

        Without a cookie, end the session with the id that the agent chose, even if it is opened later: the agent has
        had no response to the request that opens it, which may be late or arrive twice.
        """
        name = call.header(SESSION_HEADER.encode())
        if name is None or COOKIE in call.headers.get(b"cookie", b""):
            if (found := self._find_among(call)) is not None:
                await self.close(found)
        elif _NAME.fullmatch(name):
            self.forbid(name)
            if (named := self.named(name)) is not None:
                await self.close(named)

    def named(self, name: str) -> OpenEpisode | None:
        """Return the open session with the id that its caller chose."""
        return self._open.get(self._cookie(name.encode()))

    def forbid(self, name: str) -> None:
        """Refuse to open a session with this id from now on."""
        self._tombstones[name] = time.monotonic()
        if len(self._tombstones) > TOMBSTONES:
            self._tombstones.popitem(last=False)

    async def close_all(self) -> None:
        for session in self.open_now:
            self.end(session, wait_s=STOP_S / 5)
        await self._cleanup.settle(STOP_S)

    async def reap(self) -> None:
        while True:
            await asyncio.sleep(min(self._verified_idle_s / 4, 30.0))
            now = time.monotonic()
            for session in self.open_now:
                # A running call counts as use, but no agent waits as long as twice the idle limit for a call.
                idle_s = self._verified_idle_s if session.verified else self._idle_s
                limit_s = idle_s * (2 if session.turn.locked() else 1)
                if now - session.touched > limit_s:
                    log.warning("closing session %s, which was idle for more than %g s", session.id, limit_s)
                    self.end(session)
            while self._tombstones and now - next(iter(self._tombstones.values())) > TOMBSTONE_S:
                self._tombstones.popitem(last=False)

    def _check_name(self, name: str, cookie: bytes) -> None:
        if not _NAME.fullmatch(name):
            detail = f"{SESSION_HEADER} is {name[:80]!r}; expected 16 to 64 letters, digits, _ or -"
            raise Failure(FailureKind.BAD_REQUEST, detail)
        if cookie in self._open or name in self._tombstones:
            state = "is already open" if cookie in self._open else "was closed before"
            raise Failure(FailureKind.SESSION_LOST, f"session {name} {state}")

    def _find_among(self, call: RawRequest) -> OpenEpisode | None:
        """Return the open session that one of the call's cookies identifies, None if it is not open any more. Raises
        Failure session_lost if no cookie is of this run.
        """
        cookies = [pair.strip() for pair in call.headers.get(b"cookie", b"").split(b";")]
        for cookie in cookies:
            if (session := self._open.get(cookie)) is not None:
                return session
        ids = (cookie.removeprefix(COOKIE + b"=").partition(b".")[0] for cookie in cookies)
        if not any(map(hmac.compare_digest, cookies, map(self._cookie, ids))):
            detail = "no session: the cookie of /seed_session is missing or belongs to another run"
            raise Failure(FailureKind.SESSION_LOST, detail)
        return None

    def _cookie(self, session_id: bytes) -> bytes:
        signature = hashlib.blake2b(session_id, key=self._key, digest_size=16).hexdigest()
        return b"%b=%b.%b" % (COOKIE, session_id, signature.encode())


class SessionCleanup:
    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MAX_PARALLEL)
        self.failed = 0
        """Number of episodes whose `close` raised, exceeded its deadline or cancelled itself."""

    def __len__(self) -> int:
        return len(self._running)

    def begin(
        self, name: str, episode: Environment[Any], turn: asyncio.Lock, wait_s: float = TURN_WAIT_S
    ) -> asyncio.Task[None]:
        """Start closing an episode: once the call that holds its `turn` lock is done, or after `wait_s` seconds.

        The returned task never raises an exception.
        """
        task = asyncio.create_task(self._end(name, episode, turn, wait_s))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def settle(self, deadline_s: float) -> None:
        if not self._running:
            return
        _, left = await asyncio.wait(self._running, timeout=deadline_s)
        if left:
            log.warning("%d episodes did not close within %g s and are abandoned", len(left), deadline_s)
        for task in left:
            task.cancel()

    async def _end(self, name: str, episode: Environment[Any], turn: asyncio.Lock, wait_s: float) -> None:
        acquired = False
        try:
            async with asyncio.timeout(wait_s):
                acquired = await turn.acquire()
        except TimeoutError:
            log.warning("closing session %s although a call is still running after %g s", name, wait_s)
        try:
            async with self._slots:
                self.failed += not await _close_episode(name, episode)
        finally:
            if acquired:
                turn.release()


async def _close_episode(name: str, episode: Environment[Any]) -> bool:

    async def close() -> None:
        try:
            await episode.close()
        except PLUGIN_EXITS as error:
            raise RuntimeError(f"the environment raised {described(error)}") from error

    # In its own task, so that a `close` that swallows its cancellation does not delay other episodes.
    closing = asyncio.create_task(close())
    try:
        done, _ = await asyncio.wait({closing}, timeout=CLOSE_S)
    finally:
        closing.cancel()
    if not done:
        log.error("session %s did not close within %g s and is abandoned", name, CLOSE_S)
    elif closing.cancelled():
        log.error("closing session %s failed: the environment cancelled its own close", name)
    elif error := closing.exception():
        log.error("closing session %s failed", name, exc_info=error)
    else:
        return True
    return False


def _not_open() -> Failure:
    detail = "the session is not open: it was closed, passed its idle limit, or its server restarted"
    return Failure(FailureKind.SESSION_LOST, detail)
