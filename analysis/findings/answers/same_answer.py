"""Detector: One answer for many tasks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollyard.analysis.findings.detector import Detector, Selection
from rollyard.analysis.findings.evidence import Evidence
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.metrics.estimators import clustered_mean

_LEAST_TASKS = 10
_EXCESS = 0.15


class SameAnswer(Detector):
    """The most common extracted answer occurs in at least 10 tasks and more often than it is right: its share among the
    answers minus its share among the gold answers is above 0.15, even at the lower end of the 95% interval. Where gold
    answers are few, as with yes and no, a policy that knows nothing gives each about as often as it occurs, which is
    not reported. Without gold answers in the rows, nothing is reported.
    """

    kind = "same_answer"
    title = "One answer for many tasks"
    category = Category.BEHAVIOUR

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        answer, gold = evidence.signs.extracted, evidence.signs.expected
        has_both = (answer != 0) & (gold != 0)
        if not has_both.any():
            return
        values, counts = np.unique(answer[has_both], return_counts=True)
        common = values[counts.argmax()]
        mask = has_both & (answer == common)
        excess = mask.astype(float) - (has_both & (gold == common))
        tasks = len(np.unique(evidence.columns.task[mask]))
        found = clustered_mean(excess, evidence.starts)
        low = found.mean if found.low is None else found.low
        if tasks >= _LEAST_TASKS and low > _EXCESS:
            yield Selection(mask, f"give the same answer, in {tasks:,} different tasks")
