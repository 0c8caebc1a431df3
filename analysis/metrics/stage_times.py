"""Computes how long episodes spent in each stage."""

from __future__ import annotations

import numpy as np

from rollyard.analysis.metrics.estimators import total
from rollyard.analysis.metrics.loader.columns import Floats
from rollyard.analysis.metrics.profile_records import Stage
from rollyard.analysis.metrics.shares import Groups

TOTAL = "total"
REST = "(rest)"
"""Time that an episode spent outside all stages, such as queueing and the agent's own work."""


def stages(groups: Groups) -> list[Stage]:
    """Return the `total`, followed by the stages, longest first. REST is the time outside all stages."""
    found = dict(groups.columns.stages)
    totals = found.get(TOTAL)
    if totals is None:
        return _listed({name: (seconds, None) for name, seconds in found.items()}, groups)
    timed = ~np.isnan(totals)
    known = [np.nan_to_num(seconds[timed]) for name, seconds in found.items() if name != TOTAL]
    # A missing stage counts as 0 s, so that every share has the same denominator.
    staged = np.sum(known, axis=0) if known else np.zeros(int(timed.sum()))
    if known:
        found[REST] = np.full(len(totals), np.nan)
        found[REST][timed] = np.maximum(totals[timed] - staged, 0.0)
    denominator = total(np.maximum(totals[timed], staged))
    shares: dict[str, float | None] = {
        name: total(np.nan_to_num(seconds[timed])) / denominator if denominator > 0 else None
        for name, seconds in found.items()
    }
    # Sums of rounded stages may exceed the total by microseconds.
    if (of_total := shares[TOTAL]) is not None:
        shares[TOTAL] = 1.0 if of_total > 0.999 else None
    return _listed({name: (seconds, shares[name]) for name, seconds in found.items()}, groups)


def _listed(found: dict[str, tuple[Floats, float | None]], groups: Groups) -> list[Stage]:
    listed = [
        Stage(stage=name, seconds=spent, share=share)
        for name, (seconds, share) in found.items()
        if (spent := groups.spread(seconds)) is not None
    ]
    return sorted(listed, key=lambda stage: (stage.stage != TOTAL, -stage.seconds.total, stage.stage))
