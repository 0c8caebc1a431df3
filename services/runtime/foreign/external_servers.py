"""ExternalServers: watches servers that run elsewhere, and keeps their state in the registry."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollyard.records.errors import RunError
from rollyard.records.run_types import Heartbeat, Registration
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.http.transport import Transport
from rollyard.services.runtime.concurrent_start import all_or_first_error
from rollyard.services.runtime.foreign.health_probe import Health, HealthProbe

log = logging.getLogger(__name__)

INTERVAL_S = 2.0
FIRST_INTERVAL_S = 0.2
FAILURES = 2
"""Probes that must fail in a row before a server counts as down."""
REPORT_S = 15.0


@dataclass(slots=True)
class _External:
    spec: ServerSpec
    url: str
    probe: HealthProbe
    instance: str = ""
    starts: int = 0
    failures: int = 0
    is_down: bool = True
    detail: str = "it has not been probed yet"


class ExternalServers:
    """The servers of a run that run elsewhere."""

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
        """Stop watching. The servers keep running."""
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
                self._registry.record_heartbeat(_heartbeat(server.instance))
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
        self._registry.register(
            Registration(name=server.spec.name, instance=server.instance, url=server.url, pid=0, ready=True)
        )


def _heartbeat(instance: str) -> Heartbeat:
    return Heartbeat(instance=instance, requests=0, in_flight=0, sessions=0)
