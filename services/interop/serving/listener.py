"""Listens for the clients of a served environment, over HTTP and WebSocket, until it is told to stop."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator

from fastapi import FastAPI

from rollyard.records.io.optional import load
from rollyard.services.http.access.hosts import KnownHosts, is_loopback
from rollyard.services.http.access.request_checks import Access
from rollyard.services.http.app_listener import listening
from rollyard.services.interop.serving.access_middleware import AccessMiddleware
from rollyard.services.interop.serving.json_body import MAX_BODY


@contextlib.asynccontextmanager
async def listening_to_clients(app: FastAPI, sock: socket.socket, host: str, token: str | None) -> AsyncIterator[None]:
    """Serve the app on the socket while the block runs. Raises RunError if the app cannot start."""
    load("websockets", "openenv", "serving an environment to other programs")
    hosts = KnownHosts([host], any_address=not is_loopback(host))
    access = Access(hosts, command="ng_serve", other_users=token is not None)
    protected_app = AccessMiddleware(app, access, token=token)
    async with listening(
        protected_app,
        sock,
        ws="websockets-sansio",
        ws_max_size=MAX_BODY,
        lifespan="on",
        backlog=4096,
        timeout_graceful_shutdown=3,
    ):
        yield
