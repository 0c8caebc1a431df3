"""Detector: Groups without variance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollyard.analysis.findings.detector import Detector, Selection
from rollyard.analysis.findings.evidence import Evidence
from rollyard.analysis.findings.finding import Category

_LEAST = 0.1


class NoVariance(Detector):
    """All rollouts of the task have the same reward, so that their group-relative advantage and their gradient are
    zero. Counted among the rollouts of tasks with two or more; reported from 10% of them, because some tasks are always
    too easy or too hard.
    """

    kind = "no_variance"
    title = "Groups without variance"
    category = Category.TRAINING

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        grouped = evidence.run.by_task
        if grouped is None:
            return
        several = grouped.measured > 1
        flat = several & (grouped.min == grouped.max)
        of, mask = np.repeat(several, grouped.measured), np.repeat(flat, grouped.measured)
        if not of.any() or mask.sum() < _LEAST * of.sum():
            return
        split = ""
        if grouped.solved is not None:
            always = int((flat & (grouped.solved == grouped.measured)).sum())
            split = f": {always:,} always solved, {int((flat & (grouped.solved == 0)).sum()):,} never"
        tasks = f"{int(flat.sum()):,} of {int(several.sum()):,} tasks"
        yield Selection(mask, f"are in groups whose rewards are all equal ({tasks}{split})", of)
