"""The distribution of a quantity over rollouts or rows, in seven numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rollyard.services.types import Record


class Spread(Record):
    """Distribution of a quantity over the rollouts that record it."""

    rollouts: int
    total: float
    mean: float
    min: float
    median: float
    p95: float
    max: float


def spread(values: NDArray[np.float64]) -> Spread | None:
    """Return the distribution of the values that are recorded (not NaN); None if there are none."""
    there = values[~np.isnan(values)]
    if not len(there):
        return None
    median, high = np.quantile(there, [0.5, 0.95])
    whole = math.fsum(there.tolist())
    return Spread(
        rollouts=len(there),
        total=whole,
        mean=whole / len(there),
        min=float(there.min()),
        median=float(median),
        p95=float(high),
        max=float(there.max()),
    )
