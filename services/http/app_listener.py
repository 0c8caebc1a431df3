"""Serves an app on a socket while a block runs, for commands that handle Ctrl-C themselves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from rollyard.records.errors import RunError
from rollyard.services.http.access.peer_protocol import peer_protocol
from rollyard.services.http.access.peer_user import Peers


class _Listener(uvicorn.Server):
    """A uvicorn server that installs no signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(app: ASGIApp, sock: socket.socket, **settings: Any) -> AsyncIterator[asyncio.Task[None]]:
    """Serve the app on the socket while the block runs; yield the task that serves, which ends early only if it fails.

    Each request knows the user of its connection (`Peers`). `settings`: those of uvicorn, such as `ws` and `lifespan`.
    Raises RunError if the app cannot start.
    """
    peers = Peers()
    peers.open()
    config = uvicorn.Config(
        app,
        http=peer_protocol(peers),
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        **settings,
    )
    listener = _Listener(config)
    serving = asyncio.create_task(listener.serve(sockets=[sock]))
    try:
        while not listener.started:
            if serving.done():
                serving.result()
                raise RunError("the server stopped while it was starting; the log above says why")
            await asyncio.sleep(0.02)
        yield serving
    finally:
        listener.should_exit = True
        await serving
        peers.close()
