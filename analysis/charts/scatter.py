"""Draws pairs of numbers as points, with the line on which both are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.analysis.charts.axis import Axis, Scale
from rollyard.analysis.charts.frame import Frame
from rollyard.analysis.charts.line_plot import plot, spot
from rollyard.analysis.charts.svg import Svg, Value, drawing, mark, percent, tag


@dataclass(frozen=True)
class Pair:
    """A point with its tooltip. `marked`: in the second colour."""

    x: float
    y: float
    tip: str
    marked: bool = False


def scatter(label: str, pairs: Sequence[Pair], x: Axis, y: Axis, *, diagonal: bool = False) -> Svg:
    """Draw at least one pair. `diagonal`: draw the line of equal numbers, over the same range on both axes."""
    xs, ys = [pair.x for pair in pairs], [pair.y for pair in pairs]
    if diagonal:
        xs = ys = [*xs, *ys]
    frame = Frame(Scale(min(xs), max(xs), ticks=6), Scale(min(ys), max(ys), ticks=6), x, y)
    shapes: list[Svg] = []
    if diagonal:
        low, high = min(xs), max(xs)
        ends = f"{spot(frame, low, low)} {spot(frame, high, high)}"
        shapes.append(plot(frame, "plot", [tag("polyline", {"class": "line s2", "points": ends})]))
    for pair in sorted(pairs, key=lambda one: one.marked):
        place: dict[str, Value] = {"cx": percent(frame.across.part(pair.x)), "cy": frame.at(pair.y), "r": 3}
        dot = tag("circle", {"class": f"dot {'s1' if pair.marked else 's0'}", **place})
        shapes.append(mark(pair.tip, (dot,), tab_stop=False))
    return drawing(label, frame.total_height, frame.around(shapes), "framed")
