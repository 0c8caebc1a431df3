"""Detector: Loops: the same call with the same result."""

from __future__ import annotations

from collections import Counter

from rollyard.analysis.findings.detector import UnsolvedDetector
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.findings.row_view import RowView

_LEAST = 4
_SHARE = 1 / 3


class RepeatedCalls(UnsolvedDetector):
    """The same tool call got the same output at least 4 times, in at least a third of all calls of the rollout, and the
    task is not solved. A call that is repeated with different outputs makes progress and does not count, such as the
    same move on a changing board; up to three equal attempts are normal retries.
    """

    kind = "repeated_calls"
    title = "Loops: the same call with the same result"
    category = Category.BEHAVIOUR
    what = "repeated the same call with the same result at least 4 times"

    def flags(self, row: RowView) -> bool:
        if len(row.calls) < _LEAST:
            return False
        seen = Counter((call.name, call.arguments, call.output) for call in row.calls if call.output is not None)
        most = max(seen.values(), default=0)
        return most >= max(_LEAST, _SHARE * len(row.calls))
