"""ListScope: what a list is about, such as a finding."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.analysis.browse.list.rollout_source import Scope


@dataclass(frozen=True)
class ListScope:
    """What a list is about."""

    title: str
    rows: Scope | None = None
    """None if the query selects them."""
