"""The interface of experiment trackers. Each implementation has its own module and imports its package on creation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rollyard.services.types import Json

ROLLOUTS = "rollouts"
"""The number of measured rollouts, which is also the step at which metrics are logged."""
Cell = str | int | float | bool | None


class Tracker(Protocol):
    """One run of an experiment tracker. If a run with the given id exists, it is resumed."""

    @property
    def logged(self) -> int:
        """Return the number of rollouts already logged; 0 for a new run or if the tracker cannot be queried."""
        ...

    @property
    def place(self) -> str:
        """Return the run's location for the user."""
        ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics after `step` rollouts."""
        ...

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        """Log a table of sampled rollouts at the end."""
        ...

    def close(self, *, failed: bool) -> None:
        """Finish the run."""
        ...


def flat(tree: Json, prefix: str = "") -> dict[str, Cell]:
    """Return `{"a": {"b": 1}}` as `{"a.b": 1}`; lists become text."""
    found: dict[str, Cell] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            plain = value is None or isinstance(value, str | int | float | bool)
            found[f"{prefix}{key}"] = value if plain else str(value)
    return found
