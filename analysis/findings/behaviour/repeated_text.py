"""Detector: Loops: the same text again and again."""

from __future__ import annotations

from rollyard.analysis.findings.detector import RowDetector
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.findings.row_view import RowView

_ENDING = 40
_LEAST = 8


class RepeatedText(RowDetector):
    """The last 40 characters of a text of the model occur in it at least 8 times without overlapping, and contain at
    least 4 different characters. Degenerate generation runs into a limit while it repeats a phrase; normal texts hardly
    ever repeat their ending 8 times.
    """

    kind = "repeated_text"
    title = "Loops: the same text again and again"
    category = Category.BEHAVIOUR
    what = "end in a text that repeats at least 8 times"

    def flags(self, row: RowView) -> bool:
        text = row.text.rstrip()
        ending = text[-_ENDING:]
        if len(text) < _ENDING * _LEAST or len(set(ending)) < 4:
            return False
        return text.count(ending) >= _LEAST
