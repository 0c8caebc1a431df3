"""Batch: what one update is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rollyard.training.groups.advantages import Group


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups of one update, skipped ones included."""

    step: int
    """Number of the update, counted from 1."""
    groups: tuple[Group, ...]
    position: Mapping[str, int]
    """Position in the data after this batch, for the checkpoint."""
    wait_s: float = 0.0
    """Seconds for which the trainer waited for the rollouts."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Number of permanently failed rollouts by failure kind, and as `stale` of those whose weights were too old."""


class BatchSource(Protocol):
    """Plays episodes and returns them as batches."""

    async def next_batch(self, step: int) -> Batch | None:
        """Return the batch of an update; None if the data is exhausted.

        Raises RunError if too many rollouts fail or the stack cannot be reached.
        """
        ...
