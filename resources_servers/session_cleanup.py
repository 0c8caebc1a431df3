"""Closes each episode exactly once, in its own task and within a deadline.

The caller may be cancelled, and an environment's `close` may hang, raise or cancel itself. None of these delays the
cleanup of other episodes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from rollyard.services.server.app import PLUGIN_EXITS, described

log = logging.getLogger(__name__)

TURN_WAIT_S = 5.0
"""How long the cleanup of an episode waits for a running call."""
CLOSE_S = 30.0
"""How long an environment's `close` may take before it is cancelled."""
MAX_PARALLEL = 256
"""Maximum number of environments that are closed at the same time."""


class Closable(Protocol):
    """The episode that a session contains."""

    async def close(self) -> None:
        """Release the episode's resources. Called exactly once."""


class SessionCleanup:
    """Runs the cleanup for one server's finished episodes."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MAX_PARALLEL)
        self.failed = 0
        """Number of episodes whose `close` raised, exceeded its deadline or cancelled itself."""

    def __len__(self) -> int:
        return len(self._running)

    def begin(
        self, name: str, episode: Closable, turn: asyncio.Lock, wait_s: float = TURN_WAIT_S
    ) -> asyncio.Task[None]:
        """Start closing an episode: once the call that holds its `turn` lock is done, or after `wait_s` seconds.

        The returned task never raises an exception.
        """
        task = asyncio.create_task(self._end(name, episode, turn, wait_s))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def settle(self, deadline_s: float) -> None:
        """Wait until all cleanups are done; cancel those that exceed the deadline."""
        if not self._running:
            return
        _, left = await asyncio.wait(self._running, timeout=deadline_s)
        if left:
            log.warning("%d episodes did not close within %g s and are abandoned", len(left), deadline_s)
        for task in left:
            task.cancel()

    async def _end(self, name: str, episode: Closable, turn: asyncio.Lock, wait_s: float) -> None:
        acquired = await _acquire(name, turn, wait_s)
        try:
            async with self._slots:
                self.failed += not await _close_episode(name, episode)
        finally:
            if acquired:
                turn.release()


async def _acquire(name: str, turn: asyncio.Lock, wait_s: float) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            await turn.acquire()
    except TimeoutError:
        log.warning("closing session %s although a call is still running after %g s", name, wait_s)
        return False
    return True


async def _close_episode(name: str, episode: Closable) -> bool:
    """Return whether the episode closed. Failures are logged."""

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
