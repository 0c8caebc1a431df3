"""Defines the records of failed attempts."""

from __future__ import annotations

from rollyard.analysis.metrics.estimate import Estimate
from rollyard.records.types import Record


class FailureKindCount(Record):
    """Failed attempts of one kind."""

    kind: str
    attempts: int
    lost: int
    """Number of missing rollouts whose last attempt failed this way."""
    share: Estimate | None = None
    """Share of all attempts, measured or failed, with each task as one trial."""
    servers: list[str]
    """Servers where the failures originated, most frequent first."""


class Failures(Record):
    """Failed attempts, which never count as rewards."""

    attempts: int
    mended: int
    """Number of rollouts that were measured after a failed attempt."""
    lost: int
    """Number of rollouts that failed and were never measured."""
    kinds: list[FailureKindCount]
