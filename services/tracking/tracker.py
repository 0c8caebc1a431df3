"""Tracker: where numbers over time and a table of rollouts go. One file a kind; each imports its package when made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rollyard.services.types import Json

ROLLOUTS = "rollouts"
"""The number of measured rollouts, which is also the step at which numbers are logged."""
Cell = str | int | float | bool | None


class Tracker(Protocol):
    """One run of an experiment tracker. Made with the id of a run that is there, it goes on with that one."""

    @property
    def logged(self) -> int:
        """Rollouts up to which the run has its numbers; 0 for a new one, or where the tracker cannot tell."""
        ...

    @property
    def place(self) -> str:
        """Where a person finds it."""
        ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Numbers as of `step` rollouts."""
        ...

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        """Rollouts to read, at the end."""
        ...

    def close(self, *, failed: bool) -> None:
        """No more is to come."""
        ...


def flat(tree: Json, prefix: str = "") -> dict[str, Cell]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`; lists as text."""
    found: dict[str, Cell] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            plain = value is None or isinstance(value, str | int | float | bool)
            found[f"{prefix}{key}"] = value if plain else str(value)
    return found
