"""Serves the state and the recent history of the current run.

GET /api/live returns the current run; `services/head/run_snapshot.py` defines the response. GET /api/live/charts
returns charts of the last ten minutes, which are only recorded while a page is open.

The run is queried at most twice a second, regardless of the number of open pages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from rollyard.analysis.charts.chart import Charts
from rollyard.analysis.viewer.api.run_history import RunHistory
from rollyard.records.errors import Failure, RunError
from rollyard.records.run_types import HeadFile
from rollyard.services.head.run_snapshot import RunSnapshot, fetch_snapshot
from rollyard.services.http.transport import Transport

CACHE_S = 0.5


def live_router(transport: Transport, find: Callable[[], Awaitable[HeadFile]]) -> APIRouter:
    """Build the routes. `find` returns the head's file; it is `find_run` with bound arguments and raises RunError if
    there is no run.
    """
    router = APIRouter()
    cache = _Cache(lambda: _now(transport, find))
    router.get("/api/live", summary="The current run")(cache.read)
    router.get("/api/live/charts", summary="Its throughput")(cache.charts)
    return router


class _Cache:
    """Shares one snapshot among concurrent requests."""

    def __init__(self, fetch_snapshot: Callable[[], Awaitable[RunSnapshot]]) -> None:
        self._fetch = fetch_snapshot
        self._lock = asyncio.Lock()
        self._snapshot: RunSnapshot | None = None
        self._until = 0.0
        self._history = RunHistory()
        self._drawn: tuple[RunSnapshot, Charts] | None = None

    async def read(self) -> RunSnapshot:
        """Return the current run: servers, episodes by stage, stuck episodes, collections and failures."""
        async with self._lock:
            return await self._current()

    async def charts(self) -> Charts:
        """Return the charts of the run's history, which are drawn once per snapshot."""
        async with self._lock:
            live = await self._current()
            if self._drawn is None or self._drawn[0] is not live:
                self._drawn = live, Charts(charts=await run_in_threadpool(self._history.charts))
            return self._drawn[1]

    async def _current(self) -> RunSnapshot:
        if self._snapshot is None or time.monotonic() > self._until:
            self._snapshot = await self._fetch()
            self._until = time.monotonic() + CACHE_S
            self._history.add(self._snapshot)
        return self._snapshot


async def _now(transport: Transport, find: Callable[[], Awaitable[HeadFile]]) -> RunSnapshot:
    try:
        return await fetch_snapshot(transport, await find())
    except (RunError, Failure) as error:
        return RunSnapshot(time=time.time(), note=str(error))
