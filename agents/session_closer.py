"""Closing: the sessions that an agent opened are ended, whatever becomes of the rollouts that they were opened for.

The end is a task of its own: a caller that hangs up, a deadline or a stop of the agent does not reach it. It is tried
again a few times, because it may be repeated; after that the environment's idle limit is left.
"""

from __future__ import annotations

import asyncio
import logging

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.client import Session

log = logging.getLogger(__name__)

WAIT_S = 5.0
"""How long a rollout waits for the end of its session; the end goes on without it."""
STOP_S = 2.5
"""How long an agent that stops waits for all ends together; its process is ended soon after."""
TRY_S = 10.0
PAUSES_S = (0.2, 1.0, 5.0, 15.0)
"""Between two tries."""
TRIED_AGAIN = 64
"""Sessions whose end is tried again at the same time: the environment may be late because it is overloaded."""
_PASSING = frozenset({FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT})


class SessionCloser:
    """One for all episodes of an agent."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(TRIED_AGAIN)

    async def close(self, environment: Session) -> None:
        """End the session that `world` holds or may hold; returns when it has ended, or after a few seconds."""
        task = asyncio.create_task(self._close(environment))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.wait({task}, timeout=WAIT_S)

    async def settle(self) -> None:
        """Wait until all have ended, for a few seconds at most."""
        if self._running:
            _, left = await asyncio.wait(self._running, timeout=STOP_S)
            for task in left:
                task.cancel()

    async def _close(self, environment: Session) -> None:
        if await self._tried(environment, last=False):
            return
        async with self._slots:
            for pause_s in PAUSES_S:
                await asyncio.sleep(pause_s)
                if await self._tried(environment, last=pause_s == PAUSES_S[-1]):
                    return

    async def _tried(self, environment: Session, *, last: bool) -> bool:
        """True when there is nothing left to do."""
        try:
            await environment.send("/close", b"{}", TRY_S)
        except Failure as failure:
            if not last and failure.kind in _PASSING:
                return False
            log.warning("closing a session of %s failed, its idle limit will end it: %s", environment.server, failure)
        return True
