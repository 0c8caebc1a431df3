"""Closes the sessions that an agent opened, regardless of how their rollouts ended.

Each session is closed in a separate task, so that neither a disconnecting caller nor a timeout cancels it. Closing is
idempotent and is retried a few times. If all attempts fail, the environment's idle limit ends the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.http.session import Session

log = logging.getLogger(__name__)

WAIT_S = 5.0
"""How long a rollout waits for its session to close. After that, closing continues in the background."""
STOP_S = 2.5
"""How long a stopping agent waits for all sessions to close; its process is killed soon after."""
ATTEMPT_TIMEOUT_S = 10.0
PAUSES_S = (0.2, 1.0, 5.0, 15.0)
"""Pauses between attempts."""
MAX_CONCURRENT_RETRIES = 64
"""Maximum number of sessions whose closing is retried at the same time. The environment may already be overloaded."""
_TRANSIENT = frozenset({FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT})


class SessionCloser:
    """Closes sessions. One instance serves all episodes of an agent."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_RETRIES)

    async def close(self, environment: Session, disconnect: Callable[[], Awaitable[None]]) -> None:
        """Close the session that `environment` has, or may have, opened. Returns once it is closed, or after WAIT_S.

        `disconnect` is called once before, to end what the episode opened within the session.
        """
        task = asyncio.create_task(self._close(environment, disconnect))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.wait({task}, timeout=WAIT_S)

    async def settle(self) -> None:
        """Wait up to STOP_S for all sessions to close, then cancel the rest."""
        if self._running:
            _, left = await asyncio.wait(self._running, timeout=STOP_S)
            for task in left:
                task.cancel()

    async def _close(self, environment: Session, disconnect: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(Failure):  # the server ends it after its own idle limit
            await disconnect()
        if await self._try_close(environment, last=False):
            return
        async with self._slots:
            for pause_s in PAUSES_S:
                await asyncio.sleep(pause_s)
                if await self._try_close(environment, last=pause_s == PAUSES_S[-1]):
                    return

    async def _try_close(self, environment: Session, *, last: bool) -> bool:
        """Return True if no further attempt is needed."""
        try:
            await environment.send("/close", b"{}", ATTEMPT_TIMEOUT_S)
        except Failure as failure:
            if not last and failure.kind in _TRANSIENT:
                return False
            log.warning(
                "a session of %s could not be closed and will expire after its idle limit: %s",
                environment.server,
                failure,
            )
        return True
