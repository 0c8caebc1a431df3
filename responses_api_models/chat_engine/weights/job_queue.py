"""Runs jobs on the engines one after another. A job runs to completion even if its caller disconnects.

A partial update would be worse than none: engines would stay paused or have different weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from rollyard.records.errors import Failure, FailureKind

log = logging.getLogger(__name__)

T = TypeVar("T")


class JobQueue:
    """The job queue of one model server."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` after all earlier jobs and return its result. Raises Failure if the server is stopping."""
        task = asyncio.create_task(self._in_turn(work))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait for the running job; reject the jobs that wait behind it."""
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
            log.error("%s", error)  # the caller may have disconnected
