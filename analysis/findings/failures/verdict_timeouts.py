"""Detector: Verdicts that timed out or failed."""

from __future__ import annotations

import re

from rollyard.analysis.findings.detector import RowDetector
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.findings.row_view import RowView

_TIMED_OUT = ("timed_out", "scoring_timed_out", "openenv_timed_out", "verification_timed_out", "judge_timed_out")
_TIMEOUT = re.compile(r"time_?d?_?out", re.IGNORECASE)
_FAILED = ("judge_error", "judge_failed", "verifier_error", "verification_error", "scoring_error")


class VerdictTimeouts(RowDetector):
    """The environment reports that its own verdict timed out or that its judge failed (`timed_out`,
    `scoring_timed_out`, `judge_error`, ..., or a declared `limit` whose name says so), and the rollout has a reward
    nevertheless. Such rewards say nothing about the policy. Reported from 1% of the rollouts.
    """

    kind = "verdict_timeouts"
    title = "Verdicts that timed out or failed"
    category = Category.FAILURE
    what = "have a reward although the environment's verdict timed out or its judge failed"

    def flags(self, row: RowView) -> bool:
        if any(row.row.get(name) is True for name in _TIMED_OUT):
            return True
        if any(value is True and _TIMEOUT.search(name) for name, value in row.limits.items()):
            return True
        return any(row.row.get(name) not in (None, False, "", 0) for name in _FAILED)
