"""Detector: Stopped before the environment was done."""

from __future__ import annotations

from collections.abc import Iterator

from rollyard.analysis.findings.detector import Detector, Selection
from rollyard.analysis.findings.evidence import Evidence
from rollyard.analysis.findings.finding import Category

_DONE_SHARE = 0.9
_LEAST_SOLVED = 5


class StoppedEarly(Detector):
    """The model stopped calling tools (finish reason `answered`) after at least one call, without solving the task, in
    a run in which at least 90% of the solved rollouts (and at least 5) ended because the environment was done. Where
    success usually ends the episode, an answer before that is a resignation; elsewhere, answering is the normal end and
    nothing is reported.
    """

    kind = "stopped_early"
    title = "Stopped before the environment was done"
    category = Category.BEHAVIOUR

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        solved = evidence.run.solved
        if solved is None or solved.sum() < _LEAST_SOLVED:
            return
        done = (evidence.ended("done") & solved).sum() / solved.sum()
        mask = evidence.ended("answered") & ~solved & (evidence.columns.tool_calls > 0)
        if done >= _DONE_SHARE and mask.sum() >= max(1, 0.01 * len(evidence)):
            filters = {"end": "answered", "success": "false", "min_tool_calls": "1"}
            yield Selection(mask, "stopped calling tools before the environment was done", filters=filters)
