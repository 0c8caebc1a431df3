"""Draws histograms whose bars represent ranges or single values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rollyard.analysis.charts.axis import Axis, Scale
from rollyard.analysis.charts.frame import Frame
from rollyard.analysis.charts.svg import Svg, drawing, mark, percent, tag


@dataclass(frozen=True)
class Bar:
    """A bar of height `value` from `low` to `high` on the horizontal axis. A single value has `low` = `high`."""

    low: float
    high: float
    value: float
    tip: str
    href: str | None = None


def histogram(label: str, bars: Sequence[Bar], x: Axis, y: Axis, x_ticks: Sequence[float] | None = None) -> Svg:
    """Draw the bars to scale. A bar's tooltip appears over the full height of the plot."""
    gaps = [after.low - before.low for before, after in pairwise(bars) if after.low > before.low]
    alone = 0.8 * min(gaps, default=1.0)
    edges = [(bar.low, bar.high) if bar.high > bar.low else (bar.low - alone / 2, bar.low + alone / 2) for bar in bars]
    low, high = min(left for left, _ in edges), max(right for _, right in edges)
    if len(bars) == 1:
        low, high = low - alone, high + alone
    values = [bar.value for bar in bars]
    frame = Frame(
        Scale(low, high, ticks=8, integers=x.integers),
        Scale(min(0.0, *values, 0.0), max(0.0, *values) or 1.0, ticks=6, integers=y.integers),
        x,
        y,
        x_ticks=x_ticks,
    )
    marks = [_mark(frame, bar, *edge) for bar, edge in zip(bars, edges, strict=True)]
    linked = any(bar.href for bar in bars)
    return drawing(label, frame.total_height, frame.around(marks), "framed", linked=linked)


def _mark(frame: Frame, bar: Bar, low: float, high: float) -> Svg:
    left, right = frame.across.part(low), frame.across.part(high)
    top, foot = sorted((frame.at(bar.value), frame.at(0.0)))
    room = 0.06 * (right - left) if bar.high > bar.low else 0.0
    position = {"x": percent(left + room / 2), "width": percent(max(right - left - room, 0.003))}
    shapes = (
        tag("rect", {"class": "hit", **position, "y": frame.top, "height": frame.height}),
        tag("rect", {"class": "bar", **position, "y": top, "height": max(foot - top, 0.0)}),
    )
    # Bars are not tab stops, because there may be many; the table of numbers has the same links.
    return mark(bar.tip, shapes, bar.href, tab_stop=False)
