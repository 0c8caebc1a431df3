"""Computes the metrics of each dataset in a mixture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollyard.analysis.metrics.estimators import clustered_mean
from rollyard.analysis.metrics.loader.columns import Columns, chosen
from rollyard.analysis.metrics.per_task import PerTask, pass_at
from rollyard.analysis.metrics.profile_records import DatasetFigures
from rollyard.analysis.metrics.solved import Ruling, parts_of
from rollyard.records.scores.reward_scale import NO_NAME, Scale


def by_dataset(columns: Columns, rulings: Sequence[Ruling], *, indexed: bool) -> list[DatasetFigures]:
    """Return the metrics of each dataset, sorted by name; empty if the run has only one dataset."""
    if len(rulings) < 2:
        return []
    found = []
    for ruling in sorted(rulings, key=lambda one: one.dataset):
        own, wins = chosen(columns, ruling.rows), ruling.solved
        grouped = PerTask.of(own, wins)
        rate = None if wins is None else clustered_mean(wins.astype(float), grouped.starts, is_share=True)
        reward = clustered_mean(own.reward, grouped.starts)
        found.append(
            DatasetFigures(
                name=ruling.dataset,
                rollouts=len(own),
                tasks=len(grouped) if indexed else 0,
                solved=None if wins is None else int(wins.sum()),
                solved_rule=ruling.rule,
                rate=rate,
                mean_reward=reward.mean,
                reward=reward,
                min=float(own.reward.min()),
                max=float(own.reward.max()),
                pass_at=pass_at(grouped) if indexed else [],
            )
        )
    return found


def scales(columns: Columns) -> dict[str, Scale]:
    """Return the reward scale of each dataset."""
    return {
        name or NO_NAME: Scale(
            low=float(columns.reward[mask].min()),
            high=float(columns.reward[mask].max()),
            unlike_success=int(
                ((columns.success[mask] == 1) != (columns.reward[mask] == 1))[~np.isnan(columns.success[mask])].sum()
            ),
            agents=frozenset(
                "" if code < 0 else columns.agent.names[code] for code in np.unique(columns.agent.codes[mask]).tolist()
            ),
        )
        for name, mask in parts_of(columns)
    }
