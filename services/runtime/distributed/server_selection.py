"""Selects the servers of a config that start on this host."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.config.server_folders import ALIASES, FAMILIES


def select_servers(servers: Sequence[ServerSpec], only: Sequence[str]) -> list[ServerSpec]:
    """Return the servers whose name or family is in `only`. Raises OperatorError on unknown names."""
    families = {ALIASES.get(name, name) for name in only} & set(FAMILIES)
    names = {spec.name for spec in servers}
    for name in only:
        if name not in names and ALIASES.get(name, name) not in families:
            known = [*sorted(names), *FAMILIES]
            hint = did_you_mean(name, known)
            raise OperatorError(f"--only {name!r} is neither a server nor a family{hint} (known: {', '.join(known)})")
    # Servers that run elsewhere are watched by the head's process alone.
    selected = [
        spec for spec in servers if (spec.name in only or spec.family in families) and spec.external_url is None
    ]
    if only and not selected:
        raise OperatorError(f"the configs do not define any server of the family {', '.join(only)}")
    return selected
