"""Draws the log-probability of every token generated in an episode."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollyard.analysis.charts.axis import Axis
from rollyard.analysis.charts.chart import Chart, chart
from rollyard.analysis.charts.labels import share, short
from rollyard.analysis.charts.series import series

_MAX_POINTS = 3000
"""Maximum number of tokens drawn as separate points; longer episodes are drawn as a line."""


def log_probs(found: Sequence[float]) -> Chart | None:
    """Draw the log-probabilities; return None for fewer than two tokens."""
    if len(found) < 2:
        return None

    def describe(indexes: Sequence[int]) -> str:
        first, last = indexes[0], indexes[-1]
        if first == last:
            return f"token {first:,}: log-probability {short(found[first])}, {_likely(found[first])}"
        lowest = min(found[index] for index in indexes)
        mean = sum(found[index] for index in indexes) / len(indexes)
        return f"tokens {first:,} to {last:,}: lowest log-probability {short(lowest)}, mean {short(mean)}"

    caption = "Log-probability of every generated token, in order."
    label = f"{caption} {len(found):,} tokens, mean {short(sum(found) / len(found))}, lowest {short(min(found))}."
    positions = [float(index) for index in range(len(found))]
    x, y = Axis("generated token", integers=True), Axis("log-probability")
    svg = series(label, positions, found, x, y, describe, points=len(found) <= _MAX_POINTS)
    return chart("log_probs", "Log-probabilities", svg, caption)


def _likely(log_prob: float) -> str:
    """Return the probability as a percentage. Rounding can make a log-probability slightly positive, so it is capped at
    0.
    """
    return share(math.exp(min(log_prob, 0.0)))
