"""Chooses ports before the start, because NeMo Gym's programs have to know the addresses of all servers."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

from rollyard.records.errors import RunError
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.runtime.hosting import bind

PORTS = range(10_001, 20_001)
"""Below the range from which kernels choose ports for outgoing connections, which could take one before the start."""
_ATTEMPTS = 200


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
