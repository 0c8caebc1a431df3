"""Stack: starts and stops a run.

The head runs in this process. The servers run in their own processes, with `colocate` in this one, on other hosts that
join, or under a URL that the config names.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rollyard.records.audit import AuditLog, Origin
from rollyard.records.errors import OperatorError, RollyardError, RunError
from rollyard.records.run_types import AccessRules, Directory, HeadFile, Keys, TlsFiles, check_token
from rollyard.services.backoff import Backoff
from rollyard.services.config.plugins import load_server
from rollyard.services.config.replicas import usable_cores, with_replicas
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.config.server_code import server_code
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.registry_client import RegistryClient
from rollyard.services.head.server import Head
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.telemetry import open_telemetry
from rollyard.services.http.transport import HttpTransport, LocalTransport, endpoint_transport
from rollyard.services.runtime.exposure import owner_of_port
from rollyard.services.runtime.foreign_launcher import ForeignLauncher
from rollyard.services.runtime.foreign_servers import ExternalServers, with_ports
from rollyard.services.runtime.hosting import HostedServer, bind_for, bind_head
from rollyard.services.runtime.launcher import Launcher
from rollyard.services.runtime.run_dir import RunFolder
from rollyard.services.runtime.supervisor import REPORT_EVERY_S, StartupProgress, Supervisor, all_or_first_error
from rollyard.services.server.app import Context, audit_file
from rollyard.services.server.settings import ServerSettings

PrintLine = Callable[[str], None]


def new_keys(token: str | None = None, access: AccessRules | None = None, tls: TlsFiles | None = None) -> Keys:
    """Raises OperatorError if this cannot be a run's token."""
    if token is not None:
        check_token(token)
    run_id, secret = secrets.token_hex(4), secrets.token_hex(32)
    return Keys(run_id=run_id, secret=secret, token=token, access=access or AccessRules(), tls=tls)


def refuse_isolated(servers: Iterable[ServerSpec]) -> None:
    """Raise OperatorError unless all servers can share one process."""
    if isolated := [spec.name for spec in servers if spec.isolated]:
        listed = ", ".join(isolated)
        raise OperatorError(
            f"{listed}: requires its own Python environment, so it cannot share a process "
            "with the other servers: drop --colocate"
        )


class Stack:
    """One run. Always call `stop` after `start`, even if it fails. Status lines are printed with `print_line`."""

    def __init__(
        self,
        config: RunConfig,
        keys: Keys,
        folder: RunFolder,
        *,
        print_line: PrintLine,
        launcher: Launcher | None,
        head_host: str = "127.0.0.1",
        head_port: int = 11000,
        head_advertise: str | None = None,
        ready_timeout_s: float = 300.0,
        restarts: Backoff | None = None,
        environ: Mapping[str, str] | None = None,
        here: Sequence[ServerSpec] | None = None,
        private: bool = False,
        cores: float | None = None,
    ) -> None:
        """`here`: the servers that this process starts (default: all); the others join from other hosts. `cores`: what
        the launcher's processes may use; default: the cores of this host.
        """
        names = {spec.name for spec in (config.servers if here is None else here)}
        if launcher is not None and cores is None:
            cores = usable_cores()
        self.config = with_replicas(with_ports(config), names, cores)
        self.keys = keys
        self.folder = folder
        lag = LoopLag()
        # The registry's clock excludes loop lag, during which this process cannot read heartbeats.
        own = [spec for spec in self.config.servers if spec.external_url is None]
        self._here = [spec for spec in own if spec.name in names]
        self._elsewhere = {spec.name for spec in own} - names
        self._audit = AuditLog(audit_file(folder.logs), keys.run_id, "ng_run")
        self.registry = ServerRegistry(
            keys.run_id,
            self.config.servers,
            config.identity(),
            elsewhere=self._elsewhere,
            on_change=self._record,
            clock=lag.now,
        )
        self._private = private
        self._environ = environ or {}
        self._print_line = print_line
        self._launcher = launcher
        self._ready_timeout_s = ready_timeout_s
        self._restarts = restarts
        sock = bind_head(head_host, head_port)
        port: int = sock.getsockname()[1]
        if head_port not in (0, port):
            scheme = "http" if keys.tls is None else "https"
            where = f"the head listens on {scheme}://{head_host}:{port} instead"
            print_line(f"port {head_port} is taken{owner_of_port(head_port)}; {where}")
        self._transport = LocalTransport(HttpTransport(lag=lag, ca_files=keys.ca_files), lag)
        self._endpoints = LocalTransport(endpoint_transport(self._environ, lag, keys.ca_files), lag)
        self._book = AddressBook(self._directory)
        # Only where the servers share this process: a fork takes no threads along.
        self._telemetry = None if launcher is not None else open_telemetry(self._environ, "rollyard")
        traced = self._telemetry.transport(self._transport) if self._telemetry else self._transport
        self.client = ServerClient(traced, keys, self._book, clock=lag.now)
        settings = ServerSettings(host=head_host, port=port)
        head = Head(settings, Context("head", keys, self.client, folder.logs), self.registry, self.config, folder.base)
        self._head = HostedServer(head, sock, advertise=head_advertise, lag=lag)
        self.head_url = self._head.url
        self._supervisor: Supervisor | None = None
        self._hosted_servers: list[HostedServer] = []
        self._external = ExternalServers(
            self.config.servers, self.registry, self._transport, print_line=print_line, ready_timeout_s=ready_timeout_s
        )
        self._foreign_launcher: ForeignLauncher | None = None

    @property
    def has_processes(self) -> bool:
        return self._launcher is not None

    async def start(self) -> None:
        self._record("start", head=self.head_url, folder=str(self.folder.base))
        await self._head.listen()
        await self._head.start()
        self.folder.write_head(
            HeadFile(
                run_id=self.keys.run_id,
                url=self.head_url,
                pid=os.getpid(),
                host=socket.gethostname(),
                folder=str(self.folder.base),
                token=self.keys.token,
                ca_file=next(iter(self.keys.ca_files), None),
                private=self._private,
            )
        )
        self.folder.write_config(self.config.redacted())
        starting = [self._external.start()]
        if self._launcher is None:
            starting.append(self._start_here([spec for spec in self._here if spec.program is None]))
        processes = [spec for spec in self._here if self._launcher is not None or spec.program is not None]
        launcher = self._launcher
        if any(spec.program for spec in self.config.servers):
            launcher = self._foreign_launcher = ForeignLauncher(
                self.config,
                self.registry,
                self._transport,
                launcher,
                head_url=self.head_url,
                folder=self.folder.base,
                environ=self._environ,
            )
        if launcher is not None:
            self._supervisor = Supervisor(
                processes,
                self.registry,
                launcher,
                self.keys,
                self.head_url,
                self.folder.logs,
                print_line=self._print_line,
                ready_timeout_s=self._ready_timeout_s,
                restarts=self._restarts,
            )
            starting.append(self._supervisor.start())
        await all_or_first_error(starting)
        await self._wait_for_remote()
        count = len(self.config.servers)
        self._print_line(f"All {count} / {count} servers ready!")

    async def stop(self) -> None:
        self._record("stop")
        try:
            await self._external.stop()
            if self._foreign_launcher is not None:
                await self._foreign_launcher.close()
            if self._supervisor is not None:
                await self._supervisor.stop()
            await asyncio.gather(*(hosted.stop() for hosted in self._hosted_servers))
            await self._head.stop()
            await self._transport.close()
            await self._endpoints.close()
            if self._telemetry is not None:
                await self._telemetry.close()
        finally:
            self.folder.end()

    def _record(self, act: str, **detail: Any) -> None:
        self._audit.write(act, Origin(uid=os.getuid()), detail)

    def registry_client(self) -> RegistryClient:
        return RegistryClient(self._transport, self.head_url, self.keys)

    async def _directory(self) -> Directory:
        return self.registry.directory()

    async def _wait_for_remote(self) -> None:
        """Wait indefinitely for the servers that other hosts start."""
        pending, reported_at = set(self._elsewhere), 0.0
        while pending:
            for instance in self.registry.instances():
                if instance.ready and instance.server_name in pending:
                    pending.remove(instance.server_name)
                    self._print_line(f"  {instance.server_name:<36} ready  {instance.url}")
            if pending and time.monotonic() > reported_at + REPORT_EVERY_S:
                reported_at = time.monotonic()
                self._print_line(f"waiting for {', '.join(sorted(pending))} to join from other hosts")
            await asyncio.sleep(0.1)

    async def _start_here(self, specs: Sequence[ServerSpec]) -> None:
        """Start the servers in this process. They listen for other clients, but call each other without sockets."""
        if not specs:
            return
        self._transport.mount(self.head_url, self._head.server, self._head.server.answer_locally)
        registry_client = self.registry_client()
        started = time.monotonic()

        refuse_isolated(specs)

        async def join(spec: ServerSpec) -> None:
            kind = load_server(spec.family, spec.folder, spec.settings.entrypoint)
            code = server_code(spec.folder)
            context = Context(
                spec.name, self.keys, self.client, self.folder.logs, self._endpoints, telemetry=self._telemetry
            )
            server = kind(spec.settings, context)
            hosted = HostedServer(server, bind_for(spec.name, spec.settings))
            self._transport.mount(hosted.url, server, server.answer_locally)
            self._endpoints.mount(hosted.url, server, server.answer_locally)
            self._hosted_servers.append(hosted)
            try:
                instance = f"{spec.name}#1"
                self.registry.expect(instance)
                await hosted.join(instance, registry_client, self._book, code)
            except (RollyardError, asyncio.CancelledError):
                raise
            except Exception as error:
                raise RunError(f"{spec.name} cannot start: {type(error).__name__}: {error}") from error
            self._print_line(f"  {spec.name:<36} ready  {hosted.url:<28} {time.monotonic() - started:5.1f} s")

        async def report_phases() -> None:
            progress = StartupProgress(self._print_line)
            while True:
                await asyncio.sleep(1.0)
                for instance in self.registry.instances():
                    progress.report(instance.server_name, "" if instance.ready else instance.phase)

        limit_s = max(spec.settings.start_timeout_s or self._ready_timeout_s for spec in specs)
        reporting = asyncio.create_task(report_phases())
        try:
            # Not wait_for(gather()): if it is cancelled, asyncio reports gather's exception as never retrieved.
            async with asyncio.timeout(limit_s):
                await all_or_first_error(join(spec) for spec in specs)
        except TimeoutError as error:
            late = ", ".join(sorted(name for name, urls in self.registry.directory().servers.items() if not urls))
            raise RunError(f"not ready within {limit_s:g} s: {late}") from error
        finally:
            reporting.cancel()
