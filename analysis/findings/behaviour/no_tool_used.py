"""Detector: Gave up without using a tool."""

from __future__ import annotations

from rollyard.analysis.findings.detector import UnsolvedDetector
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.findings.row_view import RowView

_LIMITS = ("length", "context_overflow", "content_filter", "unreadable_call")


class NoToolUsed(UnsolvedDetector):
    """Tools were offered, the model called none, and the task is not solved. Rollouts that a token limit cut off or
    whose call was unreadable do not count, because the model may have been about to call one; neither do solved
    rollouts, because tools can be optional.
    """

    kind = "no_tool_used"
    title = "Gave up without using a tool"
    category = Category.BEHAVIOUR
    what = "used no tool at all and did not solve their task"

    def flags(self, row: RowView) -> bool:
        if not row.tools or row.calls or row.finish_reason in _LIMITS:
            return False
        return any(message.strip() for message in row.messages)
