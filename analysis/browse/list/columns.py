"""The columns of the list: their names, titles and texts. They are those of the web viewer (`static/columns.js`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.analysis.browse.text.visible import value_text, visible_line
from rollyard.analysis.report.formatting import count, number, seconds
from rollyard.analysis.viewer.api_records import ColumnHead, RolloutLine
from rollyard.analysis.viewer.fields import PROMPT, VERDICT, requested

DEFAULT_COLUMNS = (
    *("repeat", "success", "reward", PROMPT, VERDICT),
    *("tool_calls", "turns", "output_tokens", "seconds", "end"),
)
MISSING = "–"
_MAX_WIDTH = 16
_WIDTHS = {PROMPT: 32, "end": 14, "agent": 14}


@dataclass(frozen=True)
class Shown:
    """A column that the table shows."""

    path: str
    title: str
    is_number: bool = False
    role: str | None = None
    max_width: int = _MAX_WIDTH


@dataclass(frozen=True)
class _LineColumn:
    title: str
    text: Callable[[RolloutLine], str]
    is_number: bool = True


def outcome(line: RolloutLine) -> str:
    """Return the outcome as a symbol and a word, so that colour is never the only cue."""
    if line.outcome == "failed":
        return "! failed"
    return "measured" if line.success is None else "✓ solved" if line.success else "✗ not solved"


_LINE: dict[str, _LineColumn] = {
    "task": _LineColumn("task", lambda line: str(line.task)),
    "repeat": _LineColumn("rep", lambda line: str(line.repeat)),
    "success": _LineColumn("outcome", outcome, is_number=False),
    "outcome": _LineColumn("outcome", outcome, is_number=False),
    "reward": _LineColumn("reward", lambda line: number(line.reward)),
    "tool_calls": _LineColumn("calls", lambda line: count(line.tool_calls)),
    "turns": _LineColumn("turns", lambda line: count(line.turns)),
    "output_tokens": _LineColumn("tokens", lambda line: count(line.output_tokens)),
    "seconds": _LineColumn("time", lambda line: seconds(line.seconds)),
    "end": _LineColumn("end", lambda line: visible_line(line.end) or MISSING, is_number=False),
    "agent": _LineColumn("agent", lambda line: visible_line(line.agent) or MISSING, is_number=False),
}
LINE_COLUMNS = tuple(_LINE)
"""Columns that every line has; other ones are fields of the rows."""


def names_of(columns: str) -> list[str]:
    """Return the names in a list of columns; the default if it is empty."""
    return requested(columns) if columns else list(DEFAULT_COLUMNS)


def shown_columns(names: Sequence[str], heads: Sequence[ColumnHead]) -> list[Shown]:
    """Return the columns for these names. `heads`: the columns that the rows have, of those that are not in each line.

    The task is not among them, because the table always shows it first.
    """
    rest = {head.path: head for head in heads}
    shown: list[Shown] = []
    for name in names:
        if name == "task":
            continue
        if name in _LINE:
            line = _LINE[name]
            shown.append(Shown(name, line.title, line.is_number, max_width=_WIDTHS.get(name, _MAX_WIDTH)))
        elif name == VERDICT:
            shown += [_of(rest.pop(path)) for path, head in list(rest.items()) if head.role and path not in names]
        elif name in rest:
            shown.append(_of(rest.pop(name)))
        else:
            shown += [_of(rest.pop(path)) for path in list(rest) if path.replace(" ", "") == name.replace(" ", "")]
    return shown


def _of(head: ColumnHead) -> Shown:
    return Shown(head.path, visible_line(head.label), role=head.role, max_width=_WIDTHS.get(head.path, _MAX_WIDTH))


def line_text(column: Shown, line: RolloutLine, cells: Mapping[str, Any] | None) -> str:
    """Return what a column shows of a rollout. `cells`: its fields by path; None if they have not been read."""
    if column.path in _LINE:
        return _LINE[column.path].text(line)
    if cells is None:
        return "…" if line.outcome == "measured" else MISSING
    return value_text(cells.get(column.path)) or MISSING
