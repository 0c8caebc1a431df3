"""Peer: which user of this machine is at the other end of a connection, asked once when it is made."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rollyard.services.http.access.socket_owners import SocketTable, kernel_sockets, owner

PEER = "peer_uid"
"""In the state of a request's scope: user id at the other end, None where it cannot be found out."""
_TARGET = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class Peers:
    """Finds the owner of a connection's other end."""

    def __init__(self, table: SocketTable | None = None, *, unmapped: int | None = None) -> None:
        """`unmapped`: the id that stands for every user unknown to this user namespace; default: as it is here."""
        self._table = table
        self._unmapped = _unmapped() if unmapped is None else unmapped

    def open(self) -> None:
        """Before the first connection."""
        self._table = self._table or kernel_sockets()

    def close(self) -> None:
        """After the last one."""
        if self._table is not None:
            self._table.close()

    def owner(self, transport: asyncio.BaseTransport) -> int | None:
        """User id; None when it cannot be found out."""
        there, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if self._table is None or not isinstance(there, tuple) or not isinstance(here, tuple):
            return None
        uid = owner(self._table, there[:2], here[:2])
        return None if uid == self._unmapped else uid


class PeerProtocol(HttpToolsProtocol):
    """uvicorn's protocol that also notes the peer's owner, and gives a request the host that its target names."""

    def __init__(self, *arguments: Any, peers: Peers, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._peers = peers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the event loop."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER: self._peers.owner(transport)}

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        # RFC 9112, 3.2.2: the host of an absolute target replaces the Host header.
        if not self.url.startswith(b"/") and (target := _TARGET.match(self.url)):
            self.headers[:] = [*(pair for pair in self.headers if pair[0] != b"host"), (b"host", target[1])]
        super().on_headers_complete()


def peer_of(scope: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Whether the request came over a connection that was asked about, and the user id at its other end."""
    state = scope.get("state") or {}
    return PEER in state, state.get(PEER)


def _unmapped() -> int:
    """-1 where every user of the machine is known."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return -1
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534


def own_uid() -> int:
    """The user that sockets of this process belong to."""
    return os.geteuid()


def peer_protocol(peers: Peers) -> type[asyncio.Protocol]:
    """The protocol as uvicorn's `http` setting takes it."""
    return cast(type[asyncio.Protocol], partial(PeerProtocol, peers=peers))
