"""Means over the tokens at each place, with intervals clustered by task."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.estimators import estimate
from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.analysis.metrics.tokens.token_tally import Place, TokenTally


@dataclass(frozen=True)
class PlaceFigures:
    """The tokens at one place."""

    number: int
    tokens: int
    bounded: int
    """Number of tokens with recorded alternatives."""
    log_prob: Estimate
    """Mean log-probability."""
    rare: Estimate
    """Share of tokens with a probability below 1%."""
    entropy: Estimate | None
    """Mean of the entropies' lower bounds; None if alternatives are not recorded."""


def figures_at(tally: TokenTally, place: Place) -> list[PlaceFigures]:
    """Return the figures of each number of a place, in ascending order."""
    cells = tally.cells[tally.cells["place"] == place]
    cells = cells[np.argsort(cells["number"], kind="stable")]
    starts = np.flatnonzero(np.diff(cells["number"], prepend=-1))
    found = []
    for part in np.split(cells, starts[1:]) if len(starts) else []:
        bounded = part[part["bounded"] > 0]
        found.append(
            PlaceFigures(
                number=int(part["number"][0]),
                tokens=int(part["tokens"].sum()),
                bounded=int(part["bounded"].sum()),
                log_prob=_bounded(ratio(part["log_prob"], part["tokens"]), most=0.0),
                rare=ratio(part["rare"].astype(float), part["tokens"], is_share=True),
                entropy=_bounded(ratio(bounded["entropy"], bounded["bounded"]), least=0.0) if len(bounded) else None,
            )
        )
    return found


def ratio(sums: Floats, counts: Ints, *, is_share: bool = False) -> Estimate:
    """Return the mean over tokens, given the sum and the number of tokens of each task.

    The variance is that of a ratio of sums over tasks (Miller 2024, arXiv:2411.00640, section 2.2), because the tokens
    of a task are not independent.
    """
    total, tasks = int(counts.sum()), len(counts)
    center = float(sums.sum()) / total
    off = sums - center * counts
    variance = float(np.sum(off**2)) / total**2 * tasks / (tasks - 1) if tasks > 1 else 0.0
    noise = (8 * np.finfo(float).eps * max(abs(center), 1.0)) ** 2
    return estimate(center, variance if variance > noise else 0.0, tasks, is_share=is_share)


def _bounded(found: Estimate, least: float = -math.inf, most: float = math.inf) -> Estimate:
    """Return the estimate with its interval within the values that the quantity can have."""
    if found.low is None or found.high is None:
        return found
    return found.model_copy(update={"low": max(least, found.low), "high": min(most, found.high)})
