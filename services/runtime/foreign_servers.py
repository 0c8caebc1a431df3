"""ExternalServers: watches the servers of a run that run elsewhere; and what NeMo Gym's programs need of a run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.run_types import Heartbeat, Keys, Registration
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.config.server_entries import servers_of
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.http.listener import bind
from rollyard.services.http.transport import Transport
from rollyard.services.runtime.foreign_launcher import Health, HealthProbe
from rollyard.services.runtime.supervisor import all_or_first_error

log = logging.getLogger(__name__)
INTERVAL_S = 2.0
FIRST_INTERVAL_S = 0.2
FAILURES = 2
"""Probes that must fail in a row before a server counts as down."""
REPORT_S = 15.0
PORTS = range(10_001, 20_001)
"""Below the range from which kernels choose ports for outgoing connections, which could take one before the start."""
_ATTEMPTS = 200


@dataclass(slots=True)
class _External:
    spec: ServerSpec
    url: str
    probe: HealthProbe
    instance: str = ""
    starts: int = 0
    failures: int = 0
    is_down: bool = True


class ExternalServers:
    def __init__(
        self,
        specs: Sequence[ServerSpec],
        registry: ServerRegistry,
        transport: Transport,
        *,
        print_line: Callable[[str], None],
        ready_timeout_s: float,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._servers = [
            _External(spec, spec.external_url, HealthProbe(transport, spec.external_url))
            for spec in specs
            if spec.external_url is not None
        ]
        self._registry = registry
        self._print_line = print_line
        self._ready_timeout_s = ready_timeout_s
        self._interval_s = interval_s
        self._watches: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Wait until each server responds, then keep watching. Raises RunError if one does not respond in time."""
        await all_or_first_error(self._wait_for(server) for server in self._servers)
        self._watches = [asyncio.create_task(self._watch(server)) for server in self._servers]

    async def stop(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)

    async def _wait_for(self, server: _External) -> None:
        started = reported = time.monotonic()
        limit_s = server.spec.settings.start_timeout_s or self._ready_timeout_s
        while not (health := await server.probe.probe()).up:
            now = time.monotonic()
            if now - started > limit_s:
                raise RunError(
                    f"{server.spec.name} does not respond at {server.url} within {limit_s:g} s ({health.detail}): "
                    f"start it, or correct its address"
                )
            if reported == started or now - reported > REPORT_S:
                self._print_line(f"  {server.spec.name:<36} waiting for {server.url} ({health.detail})")
                reported = now
            await asyncio.sleep(FIRST_INTERVAL_S)
        self._register(server)
        unusual = f"; {health.detail}" if health.detail else ""
        self._print_line(f"  {server.spec.name:<36} ready  {server.url} (external{unusual})")

    async def _watch(self, server: _External) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                self._update(server, await server.probe.probe())
            except Exception as error:  # a watch that ends would leave the server's state unknown
                log.warning("%s cannot be watched", server.spec.name, exc_info=error)

    def _update(self, server: _External, health: Health) -> None:
        name = server.spec.name
        if health.up:
            server.failures = 0
            if server.is_down:
                self._registry.restarts[name] = self._registry.restarts.get(name, 0) + 1
                self._register(server)
                self._print_line(f"{name} responds again at {server.url}; sessions that were open are lost")
            else:
                beat = Heartbeat(instance=server.instance, requests=0, in_flight=0, sessions=0)
                self._registry.record_heartbeat(beat)
            return
        if health.silent:
            return  # it may be busy: without heartbeats, the registry reports it as late
        server.failures += 1
        if server.failures >= FAILURES and not server.is_down:
            server.is_down = True
            self._registry.mark_down(server.instance, health.detail)
            self._print_line(f"{name} does not respond at {server.url}: {health.detail}")

    def _register(self, server: _External) -> None:
        if server.instance:
            self._registry.remove(server.instance)
        server.starts += 1
        server.instance = f"{server.spec.name}#{server.starts}"
        server.is_down = False
        self._registry.expect(server.instance)
        self._registry.register_for(
            Registration(name=server.spec.name, instance=server.instance, url=server.url, pid=0, ready=True)
        )


def check_access(spec: ServerSpec, servers: Sequence[ServerSpec], keys: Keys) -> None:
    """Raise OperatorError if a program of NeMo Gym calls a server of this run that requires the run's token."""
    own = {other.name for other in servers if not other.is_foreign}
    if spec.program is not None and keys.token and (called := servers_of(spec, own)):
        raise OperatorError(
            f"{spec.name} calls {', '.join(called)}, but NeMo Gym's servers cannot send the run's token: drop the "
            "token (--token, ROLLYARD_TOKEN)"
        )


def refuse_programs(servers: Sequence[ServerSpec], option: str) -> None:
    """Raise OperatorError if NeMo Gym's programs are to run with an option under which they cannot."""
    if programs := [spec.name for spec in servers if spec.program is not None]:
        raise OperatorError(
            f"{', '.join(programs)}: NeMo Gym's servers start only on the host of the head, because they check no "
            f"token and need to know all addresses before the start: drop {option}, or start them yourself and give "
            "their url"
        )


def with_ports(config: RunConfig) -> RunConfig:
    """Return the config with a port for each server, if the run has a program that needs to know them."""
    if not any(spec.program for spec in config.servers):
        return config
    taken = {spec.settings.port for spec in config.servers}
    servers = []
    for spec in config.servers:
        fixed = spec if spec.external_url or spec.settings.port else _with_port(spec, taken)
        taken.add(fixed.settings.port)
        servers.append(fixed)
    return replace(config, servers=tuple(servers))


def _with_port(spec: ServerSpec, taken: set[int]) -> ServerSpec:
    port = _free_port(spec.settings.host, taken)
    settings = spec.settings.model_copy(update={"port": port})
    return replace(spec, settings=settings, raw={**spec.raw, "port": port})


def _free_port(host: str, taken: set[int]) -> int:
    for _ in range(_ATTEMPTS):
        port = random.choice(PORTS)
        if port in taken:
            continue
        with contextlib.suppress(OSError), contextlib.closing(bind(host, port)):
            return port
    raise RunError(f"no free port found between {PORTS[0]} and {PORTS[-1]} on {host}")
