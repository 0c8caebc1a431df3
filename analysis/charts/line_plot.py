"""Draws line charts, with intervals as bands and each line's name at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.analysis.charts.axis import Axis, Scale
from rollyard.analysis.charts.frame import Frame
from rollyard.analysis.charts.svg import Svg, Value, drawing, mark, percent, tag, text

_MAX_POINTS = 128
_UNITS = 1000.0
"""Width of a plot in SVG view box units."""


@dataclass(frozen=True)
class Point:
    """A point and its confidence interval. If there is no interval, `low` and `high` are None."""

    x: float
    y: float
    low: float | None
    high: float | None
    tip: str
    href: str | None = None
    """URL that the point links to. The Tab key skips it, so the chart's data table must have the same link."""


@dataclass(frozen=True)
class Line:
    """A named series of points."""

    name: str
    points: Sequence[Point]


def lines(label: str, drawn: Sequence[Line], x: Axis, y: Axis) -> Svg:
    """Draw the lines with at most 128 points each. An axis in percent goes from 0 to 100%, unless it is zoomed."""
    drawn = [Line(line.name, thinned(line.points, _MAX_POINTS)) for line in drawn]
    points = [point for line in drawn for point in line.points]
    values = [value for p in points for value in (p.y, p.low, p.high) if value is not None]
    low, high = (0.0, 1.0) if y.percent and not y.zoomed else (min(values), max(values))
    across = Scale(min(p.x for p in points), max(p.x for p in points), ticks=8, integers=x.integers)
    frame = Frame(across, Scale(low, high, ticks=6), x, y)
    shapes: list[Svg] = []
    for number, line in enumerate(drawn):
        shapes.append(_plot(frame, line, f"s{number}"))
    for number, line in enumerate(drawn):
        shapes += [mark(p.tip, (_dot(frame, p, f"s{number}"),), p.href, tab_stop=False) for p in line.points]
    linked = any(p.href for p in points)
    return drawing(label, frame.total_height, frame.around([*shapes, *_names(frame, drawn)]), "framed", linked=linked)


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Return at most `most` evenly spaced points, including the first and the last."""
    if len(points) <= most:
        return points
    return [points[round(index * (len(points) - 1) / (most - 1))] for index in range(most)]


def plot(frame: Frame, kind: str, shapes: Sequence[Svg]) -> Svg:
    """Wrap shapes in a view box that stretches over the plot. It is 1000 units wide and one unit high per pixel."""
    box = f"0 {frame.top:g} {_UNITS:g} {frame.height:g}"
    position: dict[str, Value] = {"x": "0", "y": frame.top, "width": "100%", "height": frame.height}
    return tag("svg", {"class": kind, **position, "viewBox": box, "preserveAspectRatio": "none"}, *shapes)


def spot(frame: Frame, x: float, y: float) -> str:
    """Return the coordinates of a point in the view box of `plot`, as `x,y`."""
    return f"{_UNITS * frame.across.part(x):.1f},{frame.at(y):.1f}"


def _plot(frame: Frame, line: Line, kind: str) -> Svg:
    banded = [(p.x, p.low, p.high) for p in line.points if p.low is not None and p.high is not None]
    shapes = []
    if len(banded) > 1:
        around = [spot(frame, x, high) for x, _, high in banded]
        around += [spot(frame, x, low) for x, low, _ in reversed(banded)]
        shapes.append(tag("polygon", {"class": f"band {kind}", "points": " ".join(around)}))
    path = " ".join(spot(frame, p.x, p.y) for p in line.points)
    return plot(frame, "plot", [*shapes, tag("polyline", {"class": f"line {kind}", "points": path})])


def _dot(frame: Frame, p: Point, kind: str) -> Svg:
    return tag("circle", {"class": f"dot {kind}", "cx": percent(frame.across.part(p.x)), "cy": frame.at(p.y), "r": 3})


def _names(frame: Frame, drawn: Sequence[Line]) -> list[Svg]:
    """Draw each line's name at its end: the first above its line and the others below, if they do not overlap."""
    labels, taken = [], list[float]()
    for number, line in enumerate(drawn):
        end = frame.at(line.points[-1].y)
        offsets = (-9, 18, 34) if number == 0 else (18, -22, 34, -9)
        free = [
            end + offset
            for offset in offsets
            if frame.top + 9 <= end + offset <= frame.top + frame.height - 4
            and all(abs(end + offset - other) >= 15 for other in taken)
        ]
        at = free[0] if free else end - 9
        taken.append(at)
        labels.append(text(line.name, "100%", at, f"end name s{number}"))
    return labels
