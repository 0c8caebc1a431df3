"""Draws a heat map: a row of shaded cells for each task, a column for each step."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.charts.svg import Svg, Value, drawing, mark, percent, tag, text

_CELL = 14.0
"""Height of a row in pixels."""
_HEAD = 20.0
_FAINTEST = 0.06
"""Opacity of the lowest value, so that its cell can be told from a missing one."""
_LABELS = 10
"""Maximum number of labels above the columns."""

HeatRow = tuple[str, Sequence[tuple[float, str] | None]]
"""The label of a row, and for each column the value from 0 to 1 and its tooltip; None where there is no value."""


def heat_map(label: str, columns: Sequence[str], rows: Sequence[HeatRow], title: str) -> Svg:
    """Draw the rows from top to bottom. `title` stands above the labels of the rows."""
    width = 1 / max(len(columns), 1)
    every = -(-len(columns) // _LABELS)
    shapes = [text(title, -46, 11, "title")]
    shapes += [
        text(name, percent((place + 0.5) * width), 11, "middle")
        for place, name in enumerate(columns)
        if place % every == 0
    ]
    for number, (name, cells) in enumerate(rows):
        top = _HEAD + number * _CELL
        shapes.append(text(name, -6, top + _CELL - 3, "end"))
        for place, cell in enumerate(cells):
            if cell is not None:
                shapes.append(_cell(place * width, width, top, *cell))
    return drawing(label, _HEAD + len(rows) * _CELL + 4, shapes, "framed")


def _cell(left: float, width: float, top: float, value: float, tip: str) -> Svg:
    opacity = _FAINTEST + (1 - _FAINTEST) * min(max(value, 0.0), 1.0)
    place: dict[str, Value] = {"x": percent(left), "width": percent(width), "y": top, "height": _CELL - 1}
    return mark(tip, (tag("rect", {"class": "cell", **place, "fill-opacity": opacity}),))
