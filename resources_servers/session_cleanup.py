"""Endings: how an episode ends: once, in a task of its own, within a deadline.

The caller who asked for it may be cancelled, `close` of an environment may hang, raise, or cancel itself: none of that
keeps another episode from ending.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger(__name__)

TURN_WAIT_S = 5.0
"""How long the end of an episode waits for a call that works on it."""
CLOSE_S = 30.0
"""How long `close` of an environment may take before it is given up."""
AT_ONCE = 256
"""Environments that are closed at the same time."""


class Closable(Protocol):
    """What a session holds."""

    async def close(self) -> None:
        """Give back what it holds; called exactly once."""


class SessionCleanup:
    """The episodes of one server that are ending."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)

    def __len__(self) -> int:
        return len(self._running)

    def begin(
        self, name: str, episode: Closable, turn: asyncio.Lock, wait_s: float = TURN_WAIT_S
    ) -> asyncio.Task[None]:
        """End an episode once the call that holds its `turn` is done, or after `wait_s`. The task never fails."""
        task = asyncio.create_task(self._end(name, episode, turn, wait_s))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def settle(self, deadline_s: float) -> None:
        """Wait until all have ended, and give up those that take longer."""
        if not self._running:
            return
        _, left = await asyncio.wait(self._running, timeout=deadline_s)
        if left:
            log.warning("%d episodes did not end within %g s and are given up", len(left), deadline_s)
        for task in left:
            task.cancel()

    async def _end(self, name: str, episode: Closable, turn: asyncio.Lock, wait_s: float) -> None:
        alone = await _alone(name, turn, wait_s)
        try:
            async with self._slots:
                await _closed(name, episode)
        finally:
            if alone:
                turn.release()


async def _alone(name: str, turn: asyncio.Lock, wait_s: float) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            await turn.acquire()
    except TimeoutError:
        log.warning("session %s is closed although a call has worked on it for %g s", name, wait_s)
        return False
    return True


async def _closed(name: str, episode: Closable) -> None:
    async def close() -> None:
        await episode.close()

    # A task of its own: a `close` that swallows its cancellation keeps no other episode waiting.
    closing = asyncio.create_task(close())
    try:
        done, _ = await asyncio.wait({closing}, timeout=CLOSE_S)
    finally:
        closing.cancel()
    if not done:
        log.error("closing session %s took longer than %g s and is given up", name, CLOSE_S)
    elif closing.cancelled():
        log.error("closing session %s failed: the environment cancelled its own close", name)
    elif error := closing.exception():
        log.error("closing session %s failed", name, exc_info=error)
