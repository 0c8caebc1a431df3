"""Draws estimates and their confidence intervals on a common axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.analysis.charts.axis import Axis, Scale
from rollyard.analysis.charts.frame import ticks_below
from rollyard.analysis.charts.svg import Svg, Value, cut, drawing, mark, percent, tag, text

_LETTERS = 40
_PITCH = 42


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval. If there is no interval, `low` and `high` are None."""

    name: str
    mean: float
    low: float | None
    high: float | None
    tip: str


def intervals(label: str, rows: Sequence[Interval], x: Axis, *, zero: bool = False) -> Svg:
    """Draw each estimate as a dot on its interval, below its name. `zero` adds a line at zero."""
    ends = [value for row in rows for value in (row.mean, row.low, row.high) if value is not None]
    ends += [0.0] if zero else []
    room = (max(ends) - min(ends)) * 0.06
    across = Scale(min(ends) - room, max(ends) + room)
    foot = 8 + _PITCH * len(rows)
    shapes = [
        tag("line", {"class": "grid", "x1": percent(at), "x2": percent(at), "y1": 4, "y2": foot})
        for at in map(across.part, across.ticks)
    ]
    if zero:
        at = percent(across.part(0.0))
        shapes.append(tag("line", {"class": "zero", "x1": at, "x2": at, "y1": 4, "y2": foot}))
    for index, row in enumerate(rows):
        top, y = 16 + index * _PITCH, 31 + index * _PITCH
        marks = [tag("rect", {"class": "hit", "x": "0", "width": "100%", "y": top - 12, "height": _PITCH - 4})]
        if row.low is not None and row.high is not None:
            reach: dict[str, Value] = {
                "x1": percent(across.part(row.low)),
                "x2": percent(across.part(row.high)),
                "y1": y,
                "y2": y,
            }
            marks.append(tag("line", {"class": "reach", **reach}))
        marks.append(tag("circle", {"class": "dot s0", "cx": percent(across.part(row.mean)), "cy": y, "r": 5}))
        shapes += [mark(row.tip, marks), text(cut(row.name, _LETTERS), -16, top, "name")]
    return drawing(label, foot + 38, [*shapes, *ticks_below(across, x, foot)], "intervals")
