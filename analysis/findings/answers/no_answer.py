"""Detector: No answer could be extracted."""

from __future__ import annotations

from rollyard.analysis.findings.detector import UnsolvedDetector
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.findings.row_view import RowView


class NoAnswer(UnsolvedDetector):
    """The environment extracts answers and found none in this response (the field that it declares as `extracted`, or
    `extracted_answer`, is null or empty), although the model wrote something. The reward then depends on the format
    rather than on the content.
    """

    kind = "no_answer"
    title = "No answer could be extracted"
    category = Category.FORMAT
    what = "contain no answer that the environment could extract"

    def flags(self, row: RowView) -> bool:
        return row.extracted == "" and bool(row.final_message.strip())
