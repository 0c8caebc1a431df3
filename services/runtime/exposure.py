"""Servers that other machines could reach need a run token."""

from __future__ import annotations

from collections.abc import Iterable

from rollyard.services.config.load import ServerSpec
from rollyard.services.errors import OperatorError
from rollyard.services.http.access.hosts import is_loopback


def check_exposure(servers: Iterable[ServerSpec], token: str | None, head_host: str) -> None:
    """Raises OperatorError for servers, or a head, that would be open to other machines without a token."""
    if token:
        return
    specs = list(servers)
    open_doors = [f"{spec.name} ({spec.settings.host})" for spec in specs if not is_loopback(spec.settings.host)]
    if not is_loopback(head_host):
        open_doors.insert(0, f"the head ({head_host})")
    where = "add +token=... or export ROLLYARD_TOKEN=..., and send it as Authorization: Bearer"
    if open_doors:
        raise OperatorError(f"{', '.join(open_doors)} would be open to other machines without a run token: {where}")
    for spec in specs:
        if reason := spec.settings.token_needed_for:
            raise OperatorError(f"{spec.name}: {reason}: {where}")
