"""The protocol with which uvicorn serves connections whose user is looked up."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rollyard.services.http.access.peer_user import PEER, Peers

_TARGET = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class PeerProtocol(HttpToolsProtocol):
    """Extends uvicorn's protocol: stores the peer's user id, and uses the host from an absolute request target."""

    def __init__(self, *arguments: Any, peers: Peers, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._peers = peers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER: self._peers.owner(transport)}

    def on_headers_complete(self) -> None:
        # RFC 9112, 3.2.2: the host of an absolute target replaces the Host header.
        if not self.url.startswith(b"/") and (target := _TARGET.match(self.url)):
            self.headers[:] = [*(pair for pair in self.headers if pair[0] != b"host"), (b"host", target[1])]
        super().on_headers_complete()


def peer_protocol(peers: Peers) -> type[asyncio.Protocol]:
    """Return the protocol class for uvicorn's `http` setting."""
    return cast(type[asyncio.Protocol], partial(PeerProtocol, peers=peers))
