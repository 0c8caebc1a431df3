"""Jobs: work on the engines, one after another, each brought to its end even when who asked for it is gone.

Half an update would be worse than none: engines paused for ever, or with different weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from rollyard.services.errors import Failure, FailureKind

log = logging.getLogger(__name__)

T = TypeVar("T")


class JobQueue:
    """Those of one server."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work, which begins when all before it has ended. Raises Failure when the server stops."""
        task = asyncio.create_task(self._in_turn(work))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait until the work that has begun is done; what waits behind it is refused."""
        self._stopping = True
        while self._running:
            await asyncio.wait(self._running)

    async def _in_turn(self, work: Coroutine[Any, Any, T]) -> T:
        async with self._lock:
            if self._stopping:
                work.close()
                raise Failure(FailureKind.CANCELLED, "the server is stopping; nothing was done")
            return await work

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s", error)  # nobody else may be there to hear it
