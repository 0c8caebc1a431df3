"""Preflight: finds what would prevent a run from starting, before anything is started.

It constructs every server and runs its checks, and binds all ports and releases them again. Servers with their own
Python environment are checked in a short-lived process in that environment. `ng_run` does this before each start, so
`--dry-run` and a real start fail with the same messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollyard.records.errors import EXIT_OPERATOR, OperatorError, RollyardError, RunError
from rollyard.records.run_types import Directory, Keys
from rollyard.services.config.plugins import load_server
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.tls import ServerCertificate
from rollyard.services.http.transport import HttpTransport, endpoint_transport
from rollyard.services.runtime import foreign_launcher as uv_environment
from rollyard.services.runtime.foreign_servers import check_access
from rollyard.services.runtime.hosting import bind_for, bind_head, reachable_address
from rollyard.services.runtime.launcher import LocalLauncher
from rollyard.services.runtime.stack import refuse_isolated
from rollyard.services.server.app import Context, Server


class Preflight:
    def __init__(self, specs: Sequence[ServerSpec], keys: Keys, environ: Mapping[str, str]) -> None:
        self._specs = specs
        self._keys = keys
        self._environ = environ
        self._transport = HttpTransport(ca_files=keys.ca_files)
        self._endpoints = endpoint_transport(environ, ca_files=keys.ca_files)
        self._servers: list[Server] = []

    async def check(
        self, cache: Path, *, head: tuple[str, int] | None, colocate: bool, advertise: str | None = None
    ) -> None:
        """Raise the first problem that would prevent a start on this host. `head`: its address, if it starts here, and
        `advertise` the name by which it is called instead.
        """
        if colocate:
            refuse_isolated(self._specs)
        called = self._check_ports(head, advertise)
        if self._keys.tls is not None and head is not None:
            for host in sorted(called):
                ServerCertificate(self._keys.tls, host)
        for spec in self._specs:
            try:
                if spec.is_foreign:
                    check_access(spec, self._specs, self._keys)
                    if spec.program is not None and spec.program.install:  # before the time of the start counts
                        await asyncio.to_thread(uv_environment.install, spec.folder, spec.program, cache, self._environ)
                elif spec.isolated:
                    await self._check_in_process(spec, LocalLauncher(cache))
                else:
                    await self._check_here(spec)
            except (OperatorError, RunError) as error:
                if str(error).startswith(spec.name):
                    raise
                raise type(error)(f"{spec.name}: {error}") from error

    async def advice(self) -> list[str]:
        """Return warnings about problems that do not prevent a start, each with the server's name."""
        found = await asyncio.gather(*(server.advice() for server in self._servers), return_exceptions=True)
        pairs = zip(self._servers, found, strict=True)
        return [f"{server.name}: {text}" for server, texts in pairs if isinstance(texts, list) for text in texts]

    async def close(self) -> None:
        await self._transport.close()
        await self._endpoints.close()

    async def _check_in_process(self, spec: ServerSpec, launcher: LocalLauncher) -> None:
        """Construct a server that has its own Python environment in a process of that environment."""
        launch = spec.launch(spec.name, self._keys, "", parent_pid=os.getpid(), check_only=True)
        with tempfile.TemporaryFile() as unnamed:  # it disappears even if this process is killed
            process = await launcher.launch(launch, Path(f"/proc/{os.getpid()}/fd/{unnamed.fileno()}"))
            try:
                status = await process.wait()
            finally:
                process.kill()
            if status:
                lines = os.pread(unnamed.fileno(), 1 << 20, 0).decode("utf-8", "replace").strip().splitlines()
                kind = OperatorError if status == EXIT_OPERATOR else RunError
                raise kind(lines[-1] if lines else f"{spec.name} exited with status {status} during the check")

    async def _check_here(self, spec: ServerSpec) -> None:
        kind = load_server(spec.family, spec.folder, spec.settings.entrypoint)
        client = ServerClient(self._transport, self._keys, AddressBook(self._empty_directory))
        try:
            server = kind(spec.settings, Context(spec.name, self._keys, client, endpoints=self._endpoints))
            await server.check()
        except RollyardError:
            raise
        except Exception as error:
            raise RunError(f"{spec.name} cannot start: {type(error).__name__}: {error}") from error
        self._servers.append(server)

    def _check_ports(self, head: tuple[str, int] | None, advertise: str | None) -> set[str]:
        """Bind all fixed ports at the same time, because two servers may be configured with the same one. Return the
        names and addresses by which clients will call the servers.
        """
        called = set()
        with contextlib.ExitStack() as sockets:
            if head is not None:
                sock = sockets.enter_context(contextlib.closing(bind_head(*head)))
                called.add(advertise or reachable_address(sock))
            owners: dict[tuple[str, int], str] = {}
            for spec in self._specs:
                if spec.external_url is not None:
                    continue
                address = (spec.settings.host, spec.settings.port)
                if address[1] and (other := owners.setdefault(address, spec.name)) != spec.name:
                    raise OperatorError(
                        f"{other} and {spec.name} are both configured with port {address[1]} on {address[0]}"
                    )
                sock = sockets.enter_context(contextlib.closing(bind_for(spec.name, spec.settings)))
                called.add(reachable_address(sock))
        return called

    async def _empty_directory(self) -> Directory:
        return Directory(run_id=self._keys.run_id, servers={}, families={}, settings={})
