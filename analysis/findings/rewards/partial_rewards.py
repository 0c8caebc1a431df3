"""Detector: The same partial reward again and again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollyard.analysis.findings.detector import Detector, Selection
from rollyard.analysis.findings.evidence import Evidence
from rollyard.analysis.findings.finding import Category

_LEAST = 5
_FACTOR = 2


class RepeatedPartialRewards(Detector):
    """An unsolved rollout earned the same positive step reward at least 5 times, at least twice as often as any solved
    rollout, and has more reward than the median of the other unsolved rollouts. Whoever can earn a partial reward
    again and again need not solve the task. Only rows with `step_rewards` count, and only if some rollouts are
    solved.
    """

    kind = "repeated_partial_rewards"
    title = "The same partial reward again and again"
    category = Category.EXPLOIT

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        solved, repeats = evidence.run.solved, np.nan_to_num(evidence.signs.partial_rewards)
        if solved is None or not solved.any() or solved.all():
            return
        usual = max(_LEAST, _FACTOR * float(repeats[solved].max()))
        reward = evidence.columns.reward
        many = ~solved & (repeats >= usual)
        others = ~solved & ~many
        mask = many & (reward > np.median(reward[others])) if others.any() else many
        if mask.any():
            yield Selection(mask, "earned the same partial reward at least 5 times without solving their task")
