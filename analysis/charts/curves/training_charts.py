"""Draws all metrics of a training run, in groups."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

from rollyard.analysis.charts.axis import Axis
from rollyard.analysis.charts.chart import Chart, chart
from rollyard.analysis.charts.curves.catalog import SECONDS, Drawn, charted
from rollyard.analysis.charts.curves.curve_plot import curve_plot
from rollyard.analysis.charts.labels import seconds, share, short
from rollyard.analysis.metrics.training.metrics_file import Curve
from rollyard.records.types import Record


class ChartGroup(Record):
    title: str
    charts: list[Chart]


def training_charts(curves: Mapping[str, Curve]) -> tuple[list[ChartGroup], list[str]]:
    """Return the charts, and the names of the metrics that are 0 in every step and thus have none.

    All charts have the same steps, so that what happened at the same time is at the same place.
    """
    steps = sorted({step for curve in curves.values() for step in curve.steps})
    groups: dict[str, list[Chart]] = {}
    zero = [name for name, curve in curves.items() if not any(curve.values)]
    for drawn in charted(name for name in curves if name not in zero):
        found = [curves[name] for name in drawn.names]
        groups.setdefault(drawn.group, []).append(_chart(drawn, found, (steps[0], steps[-1])))
    return [ChartGroup(title=title, charts=charts) for title, charts in groups.items()], zero


def value_text(value: float, axis: Axis) -> str:
    """Format a value of an axis."""
    if axis.percent:
        return share(value)
    return seconds(value) if axis is SECONDS else short(value)


def _chart(drawn: Drawn, curves: Sequence[Curve], steps: tuple[int, int]) -> Chart:
    def describe(first: int, last: int) -> str:
        title = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        return f"{title}: {', '.join(_parts(drawn, curves, first, last))}"

    caption = f"{_summary(drawn, curves)} {drawn.meaning}".strip()
    label = f"{drawn.title} by step. {caption}"
    svg = curve_plot(label, curves, steps, drawn.y, describe, averaged=drawn.noisy, height=90.0)
    return chart("|".join(drawn.names), drawn.title, svg, caption)


def _parts(drawn: Drawn, curves: Sequence[Curve], first: int, last: int) -> Iterator[str]:
    for curve in curves:
        values = curve.values[bisect_left(curve.steps, first) : bisect_right(curve.steps, last)]
        if values:
            name = f"{curve.name.rpartition('/')[2]} " if len(curves) > 1 else ""
            mean = value_text(sum(values) / len(values), drawn.y)
            low, high = value_text(min(values), drawn.y), value_text(max(values), drawn.y)
            yield f"{name}{mean}" if len(values) == 1 else f"{name}mean {mean}, {low} to {high}"


def _summary(drawn: Drawn, curves: Sequence[Curve]) -> str:
    return (
        "; ".join(
            (f"{curve.name.rpartition('/')[2]}: " if len(curves) > 1 else "")
            + f"{value_text(curve.values[-1], drawn.y)} at step {curve.steps[-1]:,}, "
            + f"range {value_text(min(curve.values), drawn.y)} to {value_text(max(curve.values), drawn.y)}"
            for curve in curves
        )
        + "."
    )
