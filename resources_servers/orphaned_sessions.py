"""Orphans: sessions whose agent's process has ended: nothing will ever close them.

An agent names itself with `/seed_session` (OWNER_HEADER). The run's directory lists every registered instance, silent
ones too; one that is on it no more has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rollyard.resources_servers.sessions import Sessions
from rollyard.services.errors import Failure
from rollyard.services.types import Directory

log = logging.getLogger(__name__)


class OrphanedSessions:
    """Ends the sessions of agents that are gone for `grace_s`, unless something still uses them."""

    def __init__(self, sessions: Sessions[Any], directory: Callable[[], Awaitable[Directory]], grace_s: float) -> None:
        self._sessions = sessions
        self._directory = directory
        self._grace_s = grace_s
        self._known: set[str] = set()
        """Instances that were on the directory: an agent of another run never is, and its sessions are left alone."""
        self._missed: dict[str, float] = {}

    async def watch(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(min(self._grace_s / 4, 5.0))
            with contextlib.suppress(Failure):
                self.look(set((await self._directory()).instances))

    def look(self, present: set[str]) -> None:
        """End what is left of instances that have been gone for long enough."""
        now = time.monotonic()
        self._known |= present
        gone = {session.owner for session in self._sessions.open_now} & self._known - present
        self._missed = {owner: self._missed.get(owner, now) for owner in gone}
        for session in self._sessions.open_now:
            since = self._missed.get(session.owner)
            if since is not None and now - max(since, session.touched) > self._grace_s:
                log.warning("session %s is closed: its agent %s has ended", session.id, session.owner)
                self._sessions.end(session.id)
