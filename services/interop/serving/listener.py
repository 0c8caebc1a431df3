"""Listens for the clients of a served environment, over HTTP and WebSocket, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from fastapi import FastAPI

from rollyard.services.errors import RunError
from rollyard.services.http.access.hosts import KnownHosts, is_loopback
from rollyard.services.http.access.peer_protocol import peer_protocol
from rollyard.services.http.access.peer_user import Peers
from rollyard.services.http.access.request_checks import Access
from rollyard.services.interop.serving.access_middleware import AccessMiddleware
from rollyard.services.interop.serving.json_body import MAX_BODY
from rollyard.services.io.optional import load


class _Listener(uvicorn.Server):
    """A uvicorn server that installs no signal handlers, because the command handles Ctrl-C itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(app: FastAPI, sock: socket.socket, host: str, token: str | None) -> AsyncIterator[None]:
    """Serve the app on the socket while the block runs. Raises RunError if the app cannot start."""
    load("websockets", "openenv", "serving an environment to other programs")
    peers = Peers()
    peers.open()
    hosts = KnownHosts([host], any_address=not is_loopback(host))
    access = Access(hosts, command="ng_serve", other_users=token is not None)
    listener = _Listener(_config(AccessMiddleware(app, access, token=token), peers))
    serving = asyncio.create_task(listener.serve(sockets=[sock]))
    try:
        while not listener.started:
            if serving.done():
                serving.result()
                raise RunError("the server stopped while it was starting; the log above says why")
            await asyncio.sleep(0.02)
        yield
    finally:
        listener.should_exit = True
        await serving
        peers.close()


def _config(app: AccessMiddleware, peers: Peers) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=peer_protocol(peers),
        ws="websockets-sansio",
        ws_max_size=MAX_BODY,
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=4096,
        timeout_graceful_shutdown=3,
    )
