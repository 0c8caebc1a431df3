"""HostedServer: a server that listens in this process, registers with the head and sends heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
from functools import partial

import uvicorn

from rollyard.records.errors import Failure, RunError
from rollyard.records.run_types import Heartbeat, Registration, ServerCode
from rollyard.services.head.registry_client import RegistryClient
from rollyard.services.http.access import Peers
from rollyard.services.http.callers import Callers
from rollyard.services.http.client import AddressBook
from rollyard.services.http.listener import (
    BoundedProtocol,
    Listener,
    ListenerLimits,
    SignalFreeServer,
    bind,
)
from rollyard.services.http.loop_lag import CpuShare, LoopLag
from rollyard.services.http.tls import ServerCertificate
from rollyard.services.runtime.exposure import owner_of_port
from rollyard.services.server.app import Server
from rollyard.services.server.settings import ServerSettings

log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
PHASE_S = 0.5


def bind_for(name: str, settings: ServerSettings) -> socket.socket:
    """Bind the server's socket. Raises RunError naming the server, the port and the process that holds it."""
    try:
        return bind(settings.host, settings.port)
    except OSError as error:
        owner = owner_of_port(settings.port) if settings.port else ""
        message = f"{name} cannot listen on {settings.host}:{settings.port}{owner}: {error.strerror or error}"
        raise RunError(message) from error


def bind_head(host: str, port: int) -> socket.socket:
    """Bind the head's port, or a free port if it is taken. Raises RunError if neither is possible."""
    try:
        with contextlib.suppress(OSError):
            return bind(host, port)
        return bind(host, 0)
    except OSError as error:
        raise RunError(f"the head cannot listen on {host}: {error}") from error


def reachable_address(sock: socket.socket) -> str:
    """Return the address under which processes of this host reach the server of a socket."""
    bound: str = sock.getsockname()[0]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)


class HostedServer:
    def __init__(
        self,
        server: Server,
        sock: socket.socket,
        *,
        advertise: str | None = None,
        bounds: ListenerLimits | None = None,
        lag: LoopLag | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.server = server
        port = sock.getsockname()[1]
        shown, tls = advertise or reachable_address(sock), server.context.keys.tls
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://[{shown}]:{port}" if ":" in shown else f"{scheme}://{shown}:{port}"
        self._socket = sock
        self._lag = lag or LoopLag()
        self._peers = peers or Peers()
        self._connections = Listener(
            *(server.name, bounds or ListenerLimits(), self._lag, server),
            certificate=None if tls is None else ServerCertificate(tls, shown),
            callers=Callers(server.context.keys.access),
        )
        self._listener = SignalFreeServer(
            uvicorn.Config(
                server,
                interface="asgi3",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=3,
                backlog=4096,
            )
        )
        self._serving: asyncio.Task[None] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._exporting: asyncio.Task[None] | None = None
        server.measure(self._lag)

    async def listen(self) -> None:
        """Accept requests. `/ready` returns 503 until `start` has completed."""
        self._peers.open()
        self._serving = asyncio.create_task(self._listener.serve(sockets=[]))  # no sockets: `_connections` accepts
        while not self._listener.started:
            if self._serving.done():
                self._serving.result()
                raise RunError(f"{self.server.name} stopped listening on {self.url} during startup")
            await asyncio.sleep(0.002)
        self._lag.start()
        config, state = self._listener.config, self._listener.server_state
        connection = partial(
            BoundedProtocol, self._connections, peers=self._peers, config=config, server_state=state, app_state={}
        )
        self._connections.start(self._socket, connection)

    async def start(self) -> None:
        await self.server.start()
        self.server.ready, self.server.starting = True, False
        if (telemetry := self.server.context.telemetry) is not None:
            exporting = telemetry.export_metrics(self.server.name, self.server.metric_families)
            self._exporting = asyncio.create_task(exporting)

    async def join(
        self, instance: str, head: RegistryClient, book: AddressBook, code: ServerCode | None = None
    ) -> None:
        """Listen, register with the head, start, report ready, and then send heartbeats."""
        self.server.starting = not self.server.ready
        await self.listen()
        registration = Registration(
            name=self.server.name,
            instance=instance,
            url=self.url,
            pid=os.getpid(),
            code=code,
            open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            channels=True,
        )
        await head.register(registration)
        reporting = asyncio.create_task(self._report_phase(registration, head))
        try:
            await self.start()
        finally:
            reporting.cancel()
        await head.register(registration.model_copy(update={"ready": True}))
        self._heartbeat_task = asyncio.create_task(self._send_heartbeats(registration, head, book))

    async def stop(self) -> None:
        """Stop accepting requests, give those in flight a few seconds to finish, and release all resources."""
        self.server.ready = False
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
        self._connections.stop()
        self._listener.should_exit = True
        if self._serving is not None:
            await self._serving
        self._socket.close()
        self._lag.stop()
        self._peers.close()
        await self.server.stop()
        if self._exporting is not None:  # last, as its endpoint may hang
            self._exporting.cancel()
            await asyncio.wait({self._exporting})

    async def _report_phase(self, registration: Registration, head: RegistryClient) -> None:
        message = ""
        while True:
            await asyncio.sleep(PHASE_S)
            if (phase := self.server.phase) != message:
                with contextlib.suppress(Failure):
                    await head.register(registration.model_copy(update={"phase": phase}))
                    message = phase

    async def _send_heartbeats(self, registration: Registration, head: RegistryClient, book: AddressBook) -> None:
        ready = registration.model_copy(update={"ready": True})
        cpu = CpuShare()
        while True:
            server = self.server
            heartbeat = Heartbeat(
                instance=registration.instance,
                requests=server.requests,
                in_flight=server.in_flight,
                sessions=server.sessions,
                cpu=cpu.sample(),
                phase=server.phase,
            )
            try:
                book.update(await head.send_heartbeat(heartbeat))
            except Failure as failure:
                log.warning("the head rejected a heartbeat: %s", failure)
                with contextlib.suppress(Failure):
                    await head.register(ready)
            await asyncio.sleep(HEARTBEAT_S)
