"""GET /api/live: the run that is going on here, for the page; `services/head/run_snapshot.py` defines the answer.

The run is asked twice a second at most, however many pages look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from fastapi import APIRouter

from rollyard.services.errors import Failure, RunError
from rollyard.services.head.run_snapshot import RunSnapshot, fetch_snapshot
from rollyard.services.http.transport import Transport
from rollyard.services.types import HeadFile

FRESH_S = 0.5


def live_router(transport: Transport, find: Callable[[], Awaitable[HeadFile]]) -> APIRouter:
    """The route. `find` says where the head is (`find_run` with its arguments bound) or raises RunError."""
    router = APIRouter()
    cache = _Cache(lambda: _now(transport, find))
    router.get("/api/live", summary="The run that is going on")(cache.read)
    return router


class _Cache:
    """One look for all who ask at about the same time."""

    def __init__(self, fetch_snapshot: Callable[[], Awaitable[RunSnapshot]]) -> None:
        self._look = fetch_snapshot
        self._lock = asyncio.Lock()
        self._kept: RunSnapshot | None = None
        self._until = 0.0

    async def read(self) -> RunSnapshot:
        """What goes on: servers, episodes by stage, what is stuck, collections, failures."""
        async with self._lock:
            if self._kept is None or time.monotonic() > self._until:
                self._kept = await self._look()
                self._until = time.monotonic() + FRESH_S
            return self._kept


async def _now(transport: Transport, find: Callable[[], Awaitable[HeadFile]]) -> RunSnapshot:
    try:
        return await fetch_snapshot(transport, await find())
    except (RunError, Failure) as error:
        return RunSnapshot(time=time.time(), note=str(error))
