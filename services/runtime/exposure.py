"""Checks that a run has a token if other hosts could reach its servers."""

from __future__ import annotations

from collections.abc import Iterable

from rollyard.records.errors import OperatorError
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.http.access.hosts import is_loopback


def check_exposure(servers: Iterable[ServerSpec], token: str | None, head_host: str) -> None:
    """Raise OperatorError if servers or the head would be reachable from other hosts without a token."""
    if token:
        return
    specs = [spec for spec in servers if spec.external_url is None]
    exposed = [f"{spec.name} ({spec.settings.host})" for spec in specs if not is_loopback(spec.settings.host)]
    if not is_loopback(head_host):
        exposed.insert(0, f"the head ({head_host})")
    remedy = "add --token ... or export ROLLYARD_TOKEN=..., and send it as Authorization: Bearer"
    if exposed:
        raise OperatorError(f"{', '.join(exposed)} would be open to other hosts without a run token: {remedy}")
    for spec in specs:
        if reason := spec.settings.token_needed_for:
            raise OperatorError(f"{spec.name}: {reason}: {remedy}")
