"""AddressBook: where the servers of the run listen, as this process knows it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from rollyard.services.errors import Failure
from rollyard.services.types import Directory


class AddressBook:
    """The run's directory as this process knows it; refreshed by heartbeats and whenever an address fails."""

    def __init__(self, fetch: Callable[[], Awaitable[Directory]]) -> None:
        self._fetch = fetch
        self._known: Directory | None = None
        self._stale = False
        self._refreshing: asyncio.Task[Directory] | None = None

    async def current(self) -> Directory:
        """What is known; asked for when nothing is, and again after an address was wrong."""
        if self._known is None:
            return await self.refresh()
        if self._stale:
            with contextlib.suppress(Failure):
                return await self.refresh()
        return self._known

    def update(self, directory: Directory) -> None:
        """Take over what a heartbeat's answer said."""
        self._known = directory

    def forget(self) -> None:
        """An address was wrong: ask again before the next call."""
        self._stale = True

    async def refresh(self) -> Directory:
        """Ask the head again; callers that ask at the same time share one request."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        return await asyncio.shield(self._refreshing)

    async def _refresh(self) -> Directory:
        self._known = await self._fetch()
        self._stale = False
        return self._known
