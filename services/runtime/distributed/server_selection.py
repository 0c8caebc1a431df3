"""Which servers of a config start in this place."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.services.config.load import ServerSpec
from rollyard.services.config.plugins import ALIASES, FAMILIES
from rollyard.services.errors import OperatorError, did_you_mean


def chosen(servers: Sequence[ServerSpec], only: Sequence[str]) -> list[ServerSpec]:
    """Those that `only` names, by their own names or by their families. Raises OperatorError."""
    families = {ALIASES.get(word, word) for word in only} & set(FAMILIES)
    names = {spec.name for spec in servers}
    for word in only:
        if word not in names and ALIASES.get(word, word) not in families:
            known = [*sorted(names), *FAMILIES]
            hint = did_you_mean(word, known)
            raise OperatorError(f"+only names {word!r}, no server and no family{hint} (known: {', '.join(known)})")
    found = [spec for spec in servers if spec.name in only or spec.family in families]
    if only and not found:
        raise OperatorError(f"the configs name no server of {', '.join(only)}")
    return found
