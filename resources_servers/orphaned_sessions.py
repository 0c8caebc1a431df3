"""Closes orphaned sessions, whose agent process has exited and can no longer close them.

An agent sends its instance id with `/seed_session` (OWNER_HEADER). The run's directory lists every registered
instance, including unresponsive ones, so an instance that is no longer listed has exited.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rollyard.records.errors import Failure
from rollyard.records.run_types import Directory
from rollyard.resources_servers.sessions import Sessions

log = logging.getLogger(__name__)


class OrphanedSessions:
    """Ends the sessions of agents that exited more than `grace_s` seconds ago, unless a client still uses them."""

    def __init__(self, sessions: Sessions[Any], directory: Callable[[], Awaitable[Directory]], grace_s: float) -> None:
        self._sessions = sessions
        self._directory = directory
        self._grace_s = grace_s
        self._known: set[str] = set()
        """All instances ever listed. Agents of other runs are never listed, so their sessions are not closed."""
        self._missed: dict[str, float] = {}

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(min(self._grace_s / 4, 5.0))
            with contextlib.suppress(Failure):
                self.look(set((await self._directory()).instances))

    def look(self, present: set[str]) -> None:
        """End the sessions of instances that have been missing from `present` for longer than the grace period."""
        now = time.monotonic()
        self._known |= present
        gone = {session.owner for session in self._sessions.open_now} & self._known - present
        self._missed = {owner: self._missed.get(owner, now) for owner in gone}
        for session in self._sessions.open_now:
            since = self._missed.get(session.owner)
            if since is not None and now - max(since, session.touched) > self._grace_s:
                log.warning("closing session %s because its agent %s has exited", session.id, session.owner)
                self._sessions.end(session.id)
