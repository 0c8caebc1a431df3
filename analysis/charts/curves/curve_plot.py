"""Draws one or more curves over steps, with tooltips for each step or range of steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from rollyard.analysis.charts.axis import Axis, Scale
from rollyard.analysis.charts.frame import Frame
from rollyard.analysis.charts.line_plot import plot, spot
from rollyard.analysis.charts.series import MAX_COLUMNS, column, drawn_indexes, ranges
from rollyard.analysis.charts.svg import Svg, Value, drawing, mark, tag, text
from rollyard.analysis.metrics.training.metrics_file import Curve

FEW = 60
"""Up to so many points are drawn as dots as well."""
_MIN_AVERAGED = 20
_MAX_POINTS = 1_000
_MARGIN = 0.04


def curve_plot(
    label: str,
    curves: Sequence[Curve],
    steps: tuple[int, int],
    y: Axis,
    describe: Callable[[int, int], str],
    *,
    averaged: bool = True,
    height: float = 120.0,
) -> Svg:
    """Draw up to three curves between two steps. `describe` returns the tooltip of a range of steps.

    `averaged`: draw a long curve faintly, with its moving average on top.
    """
    values = [value for curve in curves for value in curve.values]
    frame = Frame(_steps_scale(steps), _scale(values, y), Axis("step", integers=True), y, height=height)
    shapes: list[Svg] = []
    for number, curve in enumerate(curves):
        shapes += _curve(frame, curve, f"s{number}", averaged and len(curve.values) >= _MIN_AVERAGED)
    area = tag("rect", {"class": "area", "x": "0", "y": frame.top, "width": "100%", "height": frame.height})
    inner = plot(frame, "plot", [*shapes, *_columns(frame, curves, describe)])
    names = _names(curves) if len(curves) > 1 else []
    return drawing(label, frame.total_height, frame.around([area, inner, *names]), "framed series curves")


def moving_average(values: Sequence[float], indexes: Sequence[int] | None = None) -> list[float]:
    """Return the mean of each value and its neighbours on both sides, together about a tenth of the curve. `indexes`:
    the values for which it is computed, instead of all.
    """
    sums = [0.0, *itertools.accumulate(values)]
    reach = max(2, len(values) // 20)
    ends = [(max(0, index - reach), min(len(values), index + reach + 1)) for index in indexes or range(len(values))]
    return [(sums[end] - sums[start]) / (end - start) for start, end in ends]


def _steps_scale(steps: tuple[int, int]) -> Scale:
    first, last = steps
    return Scale(float(first), float(max(last, first + 1)), ticks=5, integers=True)


def _scale(values: Sequence[float], y: Axis) -> Scale:
    low, high = min(values), max(values)
    if low == high:  # a constant is read best by its distance from 0
        low, high = min(low, 0.0), max(high, 0.0)
    if 0 < low < high / 2 or (y.percent and low > 0 and high - low < 0.02):
        low = 0.0
    room = _MARGIN * (high - low)
    if y.percent and low >= 0 and high <= 1:
        return Scale(max(0.0, low - room), max(min(1.0, high + room), 0.01), ticks=5)
    return Scale(low if low == 0 else low - room, high + room, ticks=5, integers=y.integers)


def _curve(frame: Frame, curve: Curve, kind: str, averaged: bool) -> list[Svg]:
    chosen = drawn_indexes(curve.values, _MAX_POINTS)
    spots = [spot(frame, curve.steps[index], curve.values[index]) for index in chosen]
    shapes = [tag("polyline", {"class": f"line {kind}{' faint' if averaged else ''}", "points": " ".join(spots)})]
    if averaged:
        chosen = [part[0] for part in ranges(len(curve.values), _MAX_POINTS)]
        means = moving_average(curve.values, chosen)
        around = " ".join(spot(frame, curve.steps[at], mean) for at, mean in zip(chosen, means, strict=True))
        shapes.append(tag("polyline", {"class": f"line {kind}", "points": around}))
    elif len(spots) <= FEW:
        shapes.append(tag("path", {"class": f"spots {kind}", "d": "".join(f"M{at}h0" for at in spots)}))
    return shapes


def _columns(frame: Frame, curves: Sequence[Curve], describe: Callable[[int, int], str]) -> list[Svg]:
    steps = sorted({step for curve in curves for step in curve.steps})
    if len(steps) == 1:  # a column reaches halfway to its neighbours, which this one lacks
        hit: dict[str, Value] = {"x": 0, "width": 1000, "y": frame.top, "height": frame.height}
        return [mark(describe(steps[0], steps[0]), (tag("rect", {"class": "hit", **hit}),))]
    places = [float(step) for step in steps]
    return [
        column(frame, places, part, lambda found: describe(steps[found[0]], steps[found[-1]]))
        for part in ranges(len(steps), MAX_COLUMNS)
    ]


def _names(curves: Sequence[Curve]) -> list[Svg]:
    """Name the curves at the top right, the last one first, in their colours."""
    found, right = [], 0.0
    for number, curve in reversed(list(enumerate(curves))):
        name = curve.name.rpartition("/")[2]
        found.append(text(name, "100%", 11, f"end name s{number}", dx=-right))
        right += math.ceil(7.5 * len(name)) + 14
    return found
