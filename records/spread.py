"""Summarizes the distribution of a quantity over rollouts or rows in seven numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rollyard.records.types import Record


class Spread(Record):
    """The distribution of a quantity over the rollouts or rows that have a value for it."""

    rollouts: int
    total: float
    mean: float
    min: float
    median: float
    p95: float
    max: float


def spread(values: NDArray[np.float64]) -> Spread | None:
    """Return the distribution of the values, ignoring NaN, which marks a missing value. None if all are missing."""
    recorded = values[~np.isnan(values)]
    if not len(recorded):
        return None
    median, high = np.quantile(recorded, [0.5, 0.95])
    total = math.fsum(recorded.tolist())
    return Spread(
        rollouts=len(recorded),
        total=total,
        mean=total / len(recorded),
        min=float(recorded.min()),
        median=float(median),
        p95=float(high),
        max=float(recorded.max()),
    )
