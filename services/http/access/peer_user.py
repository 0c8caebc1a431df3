"""Finds the user who opened a local connection, once per connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollyard.services.http.access.socket_owners import SocketTable, kernel_sockets, owner

PEER = "peer_uid"
"""Key in a request's `scope["state"]`. The value is the peer's user id, or None if it cannot be determined."""


class Peers:
    """Looks up the user who owns the peer's socket."""

    def __init__(self, table: SocketTable | None = None, *, unmapped: int | None = None) -> None:
        """`unmapped`: user id that represents all users without a mapping in this namespace (default: the kernel's)."""
        self._table = table
        self._unmapped = _unmapped() if unmapped is None else unmapped

    def open(self) -> None:
        """Open the socket table. Call this before the first connection."""
        self._table = self._table or kernel_sockets()

    def close(self) -> None:
        """Close the socket table. Call this after the last connection."""
        if self._table is not None:
            self._table.close()

    def owner(self, transport: asyncio.BaseTransport) -> int | None:
        """Return the peer's user id, or None if it cannot be determined."""
        there, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if self._table is None or not isinstance(there, tuple) or not isinstance(here, tuple):
            return None
        uid = owner(self._table, there[:2], here[:2])
        return None if uid == self._unmapped else uid


def peer_of(scope: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Return whether the peer's user was looked up, and the peer's user id (None if it is unknown)."""
    state = scope.get("state") or {}
    return PEER in state, state.get(PEER)


def _unmapped() -> int:
    """Return the user id that represents users without a mapping in this namespace, or -1 if all users are mapped."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return -1
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534


def own_uid() -> int:
    """Return the id of the user who owns this process's sockets."""
    return os.geteuid()
