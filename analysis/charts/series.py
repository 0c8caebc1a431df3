"""Draws a long series as a curve or as points. Tooltips show the exact numbers of each column of the plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollyard.analysis.charts.axis import Axis, Scale
from rollyard.analysis.charts.frame import Frame
from rollyard.analysis.charts.line_plot import plot, spot
from rollyard.analysis.charts.svg import Svg, drawing, mark, tag

MAX_COLUMNS = 240
_MAX_SPOTS = 4000
Tooltip = Callable[[Sequence[int]], str]
"""A function that returns the tooltip of a column, given the indexes of its numbers."""


def series(
    label: str,
    xs: Sequence[float],
    ys: Sequence[float],
    x: Axis,
    y: Axis,
    describe: Tooltip,
    *,
    points: bool = False,
    kind: str = "s0",
    height: float = 120.0,
) -> Svg:
    """Draw a series as a curve, or as unconnected points if `points` is true.

    A series of more than 4,000 numbers is split into ranges, and only the lowest and the highest number of each range
    are drawn.
    """
    across = Scale(xs[0], xs[-1], ticks=5, integers=x.integers)
    frame = Frame(across, Scale(min(0.0, *ys), max(0.0, *ys) or 1.0, ticks=5, integers=y.integers), x, y, height=height)
    spots = [spot(frame, xs[index], ys[index]) for index in drawn_indexes(ys)]
    if points:
        # A zero-length stroke with round caps stays a round dot when the plot is stretched.
        shape = tag("path", {"class": f"spots {kind}", "d": "".join(f"M{at}h0" for at in spots)})
    else:
        shape = tag("polyline", {"class": f"line {kind}", "points": " ".join(spots)})
    columns = [column(frame, xs, part, describe) for part in ranges(len(xs), MAX_COLUMNS)]
    area = tag("rect", {"class": "area", "x": "0", "y": frame.top, "width": "100%", "height": frame.height})
    return drawing(
        label, frame.total_height, frame.around([area, plot(frame, "plot", [shape, *columns])]), "framed series"
    )


def column(frame: Frame, xs: Sequence[float], part: range, describe: Tooltip) -> Svg:
    """Draw the hover area of a column, which extends halfway to its neighbours."""
    first, last = part[0], part[-1]
    left = frame.across.part((xs[max(first - 1, 0)] + xs[first]) / 2)
    right = frame.across.part((xs[last] + xs[min(last + 1, len(xs) - 1)]) / 2)
    position = {"x": 1000 * left, "width": max(1000 * (right - left), 0.1), "y": frame.top, "height": frame.height}
    return mark(describe(part), (tag("rect", {"class": "hit", **position}),))


def drawn_indexes(ys: Sequence[float], most: int = _MAX_SPOTS) -> list[int]:
    """Return the indexes of at most `most` numbers: all, or the lowest and the highest of each range."""
    if len(ys) <= most:
        return list(range(len(ys)))
    chosen: set[int] = set()
    for part in ranges(len(ys), most // 2):
        chosen |= {min(part, key=ys.__getitem__), max(part, key=ys.__getitem__)}
    return sorted(chosen)


def ranges(count: int, most: int) -> list[range]:
    """Split `count` indexes into at most `most` ranges of about equal length."""
    number = min(count, most)
    return [range(index * count // number, (index + 1) * count // number) for index in range(number)]
