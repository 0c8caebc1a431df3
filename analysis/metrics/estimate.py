"""Defines the records of a mean and its interval. They are immutable, and all numbers are finite."""

from __future__ import annotations

from rollyard.records.datasets.spread import Spread
from rollyard.records.types import Record


class Estimate(Record):
    """A mean with its 95% interval, clustered by task."""

    mean: float
    stderr: float | None = None
    """None for a single task, or if all tasks have the same value."""
    low: float | None = None
    high: float | None = None
    """Bounds of the interval, mean ± t(tasks - 1) * stderr. If there is no standard error because all tasks have the
    same value, the interval of a share is derived from the number of tasks (`confidence_intervals.share_bounds`). None
    if there is no interval."""


class MeanSpread(Spread):
    """A distribution over rollouts, and its mean with an interval."""

    estimate: Estimate | None = None
