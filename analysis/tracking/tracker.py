"""Defines the interface of experiment trackers. Each has its own module and imports its package on creation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rollyard.records.types import Json

ROLLOUTS = "rollouts"
"""Name of the metric that counts rollouts with a reward. Its value is also the step at which metrics are logged."""
Cell = str | int | float | bool | None


class Tracker(Protocol):
    """A run in an experiment tracker. If a run with the given id exists, it is resumed."""

    @property
    def logged(self) -> int:
        """Number of rollouts already logged; 0 for a new run, or if the tracker cannot be queried."""
        ...

    @property
    def place(self) -> str:
        """Where the user can find the run, such as its URL."""
        ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics as of `step` measured rollouts."""
        ...

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        """Log a table of sampled rollouts when all rollouts have been logged."""
        ...

    def close(self, *, failed: bool) -> None:
        """End the run and mark it as failed or finished."""
        ...


def flat(tree: Json, prefix: str = "") -> dict[str, Cell]:
    """Flatten nested objects, so that `{"a": {"b": 1}}` becomes `{"a.b": 1}`. Lists become strings."""
    found: dict[str, Cell] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            plain = value is None or isinstance(value, str | int | float | bool)
            found[f"{prefix}{key}"] = value if plain else str(value)
    return found
