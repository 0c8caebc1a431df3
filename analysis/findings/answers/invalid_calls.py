"""Detector: Invalid tool calls."""

from __future__ import annotations

import orjson

from rollyard.analysis.findings.detector import RowDetector
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.findings.row_view import Call, RowView


class InvalidCalls(RowDetector):
    """At least one tool call is invalid: its arguments are not a JSON object, or its name is not that of an offered
    tool (only where the row lists tools), or the episode ended with `unreadable_call`. Calls with empty arguments are
    valid.
    """

    kind = "invalid_calls"
    title = "Invalid tool calls"
    category = Category.FORMAT
    what = "contain a tool call with an unknown name or arguments that are not a JSON object"

    def flags(self, row: RowView) -> bool:
        if row.finish_reason == "unreadable_call":
            return True
        return any(_is_invalid(call, row.tools) for call in row.calls)


def _is_invalid(call: Call, tools: frozenset[str]) -> bool:
    if tools and call.name not in tools:
        return True
    if not call.arguments.strip():
        return False
    try:
        return not isinstance(orjson.loads(call.arguments), dict)
    except orjson.JSONDecodeError:
        return True
