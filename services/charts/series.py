"""A long series: a curve or points over the whole width, in columns that tell the exact numbers below the pointer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollyard.services.charts.axis import Axis, Scale
from rollyard.services.charts.frame import Frame
from rollyard.services.charts.lines import plot, spot
from rollyard.services.charts.svg import Svg, drawing, mark, tag

MOST_COLUMNS = 240
_MOST_SPOTS = 4000
Told = Callable[[Sequence[int]], str]
"""What a column says of the numbers at these indexes."""


def series(
    label: str,
    xs: Sequence[float],
    ys: Sequence[float],
    x: Axis,
    y: Axis,
    tell: Told,
    *,
    points: bool = False,
    kind: str = "s0",
    height: float = 120.0,
) -> Svg:
    """`points`: unconnected. Of more than 4,000 numbers the lowest and the highest of each stretch are drawn."""
    across = Scale(xs[0], xs[-1], ticks=5, whole=x.whole)
    frame = Frame(across, Scale(min(0.0, *ys), max(0.0, *ys) or 1.0, ticks=5, whole=y.whole), x, y, height=height)
    spots = [spot(frame, xs[index], ys[index]) for index in _drawn(ys)]
    if points:
        # A stroke of no length with round ends stays a round dot, however the plot is stretched.
        shape = tag("path", {"class": f"spots {kind}", "d": "".join(f"M{at}h0" for at in spots)})
    else:
        shape = tag("polyline", {"class": f"line {kind}", "points": " ".join(spots)})
    columns = [_column(frame, xs, part, tell) for part in _stretches(len(xs), MOST_COLUMNS)]
    area = tag("rect", {"class": "area", "x": "0", "y": frame.top, "width": "100%", "height": frame.height})
    return drawing(label, frame.whole, frame.around([area, plot(frame, "plot", [shape, *columns])]), "framed series")


def _column(frame: Frame, xs: Sequence[float], part: range, tell: Told) -> Svg:
    """It reaches half-way to its neighbours."""
    first, last = part[0], part[-1]
    left = frame.across.part((xs[max(first - 1, 0)] + xs[first]) / 2)
    right = frame.across.part((xs[last] + xs[min(last + 1, len(xs) - 1)]) / 2)
    place = {"x": 1000 * left, "width": max(1000 * (right - left), 0.1), "y": frame.top, "height": frame.height}
    return mark(tell(part), (tag("rect", {"class": "hit", **place}),))


def _drawn(ys: Sequence[float]) -> list[int]:
    if len(ys) <= _MOST_SPOTS:
        return list(range(len(ys)))
    chosen: set[int] = set()
    for part in _stretches(len(ys), _MOST_SPOTS // 2):
        chosen |= {min(part, key=ys.__getitem__), max(part, key=ys.__getitem__)}
    return sorted(chosen)


def _stretches(count: int, most: int) -> list[range]:
    """At most so many stretches of about equal length."""
    number = min(count, most)
    return [range(index * count // number, (index + 1) * count // number) for index in range(number)]
