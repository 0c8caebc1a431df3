"""AddressBook: caches the run's server directory in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from rollyard.records.errors import Failure
from rollyard.records.run_types import Directory


class AddressBook:
    """Caches the run's directory. Each heartbeat updates it, and a call to an outdated URL marks it as stale."""

    def __init__(self, fetch: Callable[[], Awaitable[Directory]]) -> None:
        self._fetch = fetch
        self._directory: Directory | None = None
        self._stale = False
        self._refreshing: asyncio.Task[Directory] | None = None

    async def current(self) -> Directory:
        """Return the cached directory, fetching it first if it is missing or stale."""
        if self._directory is None:
            return await self.refresh()
        if self._stale:
            with contextlib.suppress(Failure):
                return await self.refresh()
        return self._directory

    def foreign_instance(self, url: str) -> str | None:
        """Return the instance at the base URL of a server that is not Rollyard's own; None for all others."""
        return self._directory.foreign.get(url) if self._directory is not None else None

    def update(self, directory: Directory) -> None:
        """Store the directory that a heartbeat returned."""
        self._directory = directory

    def mark_stale(self) -> None:
        """Make the next call to `current` fetch the directory again."""
        self._stale = True

    async def refresh(self) -> Directory:
        """Fetch the directory from the head. Concurrent callers share one request."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        return await asyncio.shield(self._refreshing)

    async def _refresh(self) -> Directory:
        self._directory = await self._fetch()
        self._stale = False
        return self._directory
