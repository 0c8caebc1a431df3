"""Tracker: where numbers over time and a table of rollouts go. One file a kind; each imports its package when made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from services.types import Json

Cell = str | int | float | bool | None


class Tracker(Protocol):
    """One run of an experiment tracker, begun when it is made."""

    @property
    def place(self) -> str:
        """Where a person finds it."""
        ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Numbers as of `step` rollouts."""
        ...

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
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
