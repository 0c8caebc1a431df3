"""Detector: Cut off by a limit."""

from __future__ import annotations

from rollyard.analysis.findings.detector import RowDetector
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.findings.row_view import RowView
from rollyard.records.io.json_values import mapping

_REASONS = ("length", "context_overflow", "max_steps", "truncated")


class CutByLimit(RowDetector):
    """A limit ended the episode: the finish reason is `length`, `context_overflow`, `max_steps` or `truncated`, or, in
    rows without one, the response is incomplete because of `max_output_tokens`. Reported from 1% of the rollouts,
    because such rewards measure the limit as well as the policy.
    """

    kind = "cut_by_limit"
    title = "Cut off by a limit"
    category = Category.BEHAVIOUR
    what = "were cut off by a limit on tokens, context or steps"

    def flags(self, row: RowView) -> bool:
        if row.finish_reason:
            return row.finish_reason in _REASONS
        details = mapping(mapping(row.row.get("response")).get("incomplete_details"))
        return details.get("reason") == "max_output_tokens"
