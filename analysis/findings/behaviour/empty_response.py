"""Detector: Empty responses."""

from __future__ import annotations

from rollyard.analysis.findings.detector import UnsolvedDetector
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.findings.row_view import RowView


class EmptyResponse(UnsolvedDetector):
    """The model's messages are empty and it called no tool, and the task is not solved. Reasoning does not count as a
    message, because environments do not read it.
    """

    kind = "empty_response"
    title = "Empty responses"
    category = Category.BEHAVIOUR
    what = "consist of no text and no tool call"

    def flags(self, row: RowView) -> bool:
        return not row.calls and not any(message.strip() for message in row.messages)
