"""Draws horizontal bar charts. Each bar has its name above it and a label at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.analysis.charts.frame import NARROW
from rollyard.analysis.charts.svg import Svg, cut, drawing, mark, percent, tag, text

MAX_ROWS = 12
_LETTERS = 38
"""Maximum length of a name in characters; a longer one would not fit on a phone screen."""
_PITCH = 38
_LETTER = 7.4


@dataclass(frozen=True)
class Row:
    """The name, value, label and optional link of a bar."""

    name: str
    value: float
    label: str
    href: str | None = None


def bars(label: str, rows: Sequence[Row]) -> Svg:
    """Draw the first twelve rows as bars, scaled to the largest value."""
    rows = rows[:MAX_ROWS]
    most = max((row.value for row in rows), default=0.0) or 1.0
    label_width = max((len(row.label) for row in rows), default=0) * _LETTER + 10
    longest = max(0.15, 1 - label_width / NARROW)
    shapes = []
    for index, row in enumerate(rows):
        top = index * _PITCH
        size = max(longest * max(row.value, 0.0) / most, 0.004)
        marks = (
            tag("rect", {"class": "hit", "x": "0", "width": "100%", "y": top, "height": _PITCH - 2}),
            text(cut(row.name, _LETTERS), "0", top + 12, "name"),
            tag("rect", {"class": "bar", "x": "0", "width": percent(size), "y": top + 18, "height": 12, "rx": 2}),
            text(row.label, percent(size), top + 28, "value", dx=7),
        )
        shapes.append(mark(f"{row.name}: {row.label}", marks, row.href))
    return drawing(label, len(rows) * _PITCH, shapes, "rows", linked=True)
