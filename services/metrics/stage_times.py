"""stages: where the time of episodes went."""

from __future__ import annotations

import numpy as np

from rollyard.services.datasets.spread import spread
from rollyard.services.metrics.estimators import total
from rollyard.services.metrics.loader.columns import Columns, Floats
from rollyard.services.metrics.profile_records import Stage

TOTAL = "total"
REST = "(rest)"
"""What an episode spent in no stage: waiting for its turn, the agent's own work."""


def stages(columns: Columns) -> list[Stage]:
    """The `total` first, then the longest first; what no stage accounts for is REST. Shares: see `Stage.share`."""
    found = dict(columns.stages)
    whole = found.get(TOTAL)
    if whole is None:
        return _listed({name: (seconds, None) for name, seconds in found.items()})
    there = ~np.isnan(whole)
    known = [np.nan_to_num(seconds[there]) for name, seconds in found.items() if name != TOTAL]
    # A rollout without a stage spent no time in it: every share has the same denominator.
    staged = np.sum(known, axis=0) if known else np.zeros(int(there.sum()))
    if known:
        found[REST] = np.full(len(whole), np.nan)
        found[REST][there] = np.maximum(whole[there] - staged, 0.0)
    denominator = total(np.maximum(whole[there], staged))
    shares: dict[str, float | None] = {
        name: total(np.nan_to_num(seconds[there])) / denominator if denominator > 0 else None
        for name, seconds in found.items()
    }
    # Sums of rounded stages may exceed the total by microseconds.
    if (of_total := shares[TOTAL]) is not None:
        shares[TOTAL] = 1.0 if of_total > 0.999 else None
    return _listed({name: (seconds, shares[name]) for name, seconds in found.items()})


def _listed(found: dict[str, tuple[Floats, float | None]]) -> list[Stage]:
    listed = [
        Stage(stage=name, seconds=spent, share=share)
        for name, (seconds, share) in found.items()
        if (spent := spread(seconds)) is not None
    ]
    return sorted(listed, key=lambda stage: (stage.stage != TOTAL, -stage.seconds.total, stage.stage))
