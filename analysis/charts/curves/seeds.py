"""Draws metrics of several training runs as one picture: the mean over the runs of a group, with its 95 % band."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollyard.analysis.charts.axis import Axis
from rollyard.analysis.charts.curves.catalog import axis_of, title_of
from rollyard.analysis.charts.curves.curve_plot import moving_average
from rollyard.analysis.charts.line_plot import Line, Point, lines
from rollyard.analysis.charts.style import STYLE
from rollyard.analysis.charts.svg import Svg, Value, escaped, tag, text
from rollyard.analysis.metrics.training.metrics_file import Curve
from rollyard.records.scores.confidence_intervals import t_975

MAX_GROUPS = 3
"""Number of colours of the charts."""
_WIDTH, _GAP, _LEFT, _TITLE, _FOOT = 420, 36, 58, 28, 62
_PLOT_HEIGHT = 150.0
_MANY_POINTS = 40
_SMOOTHED_FROM = 20
# The colours of the pages; a picture follows the theme of the page that shows it.
_LIGHT = "--paper:#ffffff;--ink:#1b1f24;--soft:#545c66;--rule:#d5d9df;--strong:#7b838e;--first:#2b62c9;--second:#a84a0c"
_DARK = "--paper:#14171b;--ink:#e6e9ed;--soft:#a7b0bb;--rule:#353b44;--strong:#6f7985;--first:#7fa8f5;--second:#f0a063"


@dataclass(frozen=True, slots=True)
class MeanCurve:
    """The mean of a metric over the runs of a group, at the steps that all of them have."""

    group: str
    runs: int
    steps: tuple[int, ...]
    means: tuple[float, ...]
    bands: tuple[tuple[float, float] | None, ...]
    """95 % interval of each mean over runs (Student's t); None with a single run."""
    left_out: int
    """Number of steps that only some of the runs have."""


def mean_curve(group: str, curves: Sequence[Curve], *, is_share: bool, smooth: bool = False) -> MeanCurve:
    """Average a metric over runs. `is_share`: bands end at 0 and 1.

    `smooth`: average each run over neighbouring steps first, unless it has few values, such as those of evaluations.
    """

    def drawn(curve: Curve) -> Sequence[float]:
        return moving_average(curve.values) if smooth and len(curve.values) >= _SMOOTHED_FROM else curve.values

    values = [dict(zip(one.steps, drawn(one), strict=True)) for one in curves]
    common = set.intersection(*map(set, values))
    steps = tuple(sorted(common))
    columns = [[run[step] for run in values] for step in steps]
    return MeanCurve(
        group=group,
        runs=len(curves),
        steps=steps,
        means=tuple(map(statistics.fmean, columns)),
        bands=tuple(_band(column, is_share) for column in columns),
        left_out=len(set().union(*values) - common),
    )


def picture(panels: Mapping[str, Sequence[MeanCurve]], *, columns: int = 2) -> str:
    """Return a complete SVG file with a panel for each metric. It needs no style sheet and follows light and dark."""
    columns = min(columns, len(panels))
    height = _TITLE + 24 + _PLOT_HEIGHT + _FOOT
    drawn = []
    for number, (metric, curves) in enumerate(panels.items()):
        row, column = divmod(number, columns)
        x, y = column * (_WIDTH + _GAP), row * height
        place: dict[str, Value] = {"x": x + _LEFT, "y": y + _TITLE, "width": _WIDTH - _LEFT, "height": height - _TITLE}
        title = text(title_of(metric).capitalize(), x, y + 16, "panel")
        drawn.append(title + tag("svg", {**place, "overflow": "visible"}, panel(metric, curves)))
    size = {
        "width": columns * (_WIDTH + _GAP) - _GAP + 12,
        "height": math.ceil(len(panels) / columns) * height,
    }
    names = "; ".join(dict.fromkeys(curve.group for curves in panels.values() for curve in curves if curve.group))
    label = f"{', '.join(panels)} by step{f', of {names}' if names else ''}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-6 0 {size["width"]:g} {size["height"]:g}" '
    head += f'width="{size["width"]:g}" height="{size["height"]:g}" role="img" aria-label="{escaped(label)}">'
    paper = '<rect class="paper" x="-6" width="100%" height="100%"/>'
    return f"{head}<style>{_style()}</style>{paper}{''.join(drawn)}</svg>\n"


def panel(metric: str, curves: Sequence[MeanCurve]) -> Svg:
    """Draw a metric."""
    y = axis_of(metric)
    drawn = [Line(curve.group, [_point(curve, index) for index in range(len(curve.steps))]) for curve in curves]
    dense = max(len(curve.steps) for curve in curves) > _MANY_POINTS
    svg = lines(f"{metric} by step", drawn, Axis("step", integers=True), y)
    return Svg(svg.replace('class="chart framed"', f'class="chart framed{" dense" if dense else ""}"', 1))


def summary(metric: str, curve: MeanCurve, write: Callable[[float], str]) -> str:
    """Return the first and the last mean of a group as a line of text."""

    def value(index: int) -> str:
        band = curve.bands[index]
        reach = f" (95% interval {write(band[0])} to {write(band[1])})" if band else ""
        return f"{write(curve.means[index])}{reach} at step {curve.steps[index]:,}"

    runs = f"{curve.runs} run{'s' if curve.runs > 1 else ''}"
    name = f"{curve.group}, " if curve.group else ""
    omitted = f"; {curve.left_out} steps that not all runs have are left out" if curve.left_out else ""
    return f"{metric}, {name}{runs}: {value(0)}, {value(-1)}{omitted}"


def _band(values: Sequence[float], is_share: bool) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    reach = t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    low, high = mean - reach, mean + reach
    return (max(0.0, low), min(1.0, high)) if is_share else (low, high)


def _point(curve: MeanCurve, index: int) -> Point:
    low, high = curve.bands[index] or (None, None)
    return Point(curve.steps[index], curve.means[index], low, high, f"step {curve.steps[index]}")


def _style() -> str:
    rules = STYLE.read_text(encoding="utf-8")
    own = (
        f":root{{{_LIGHT};font-family:system-ui,sans-serif}}"
        f"@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
        ".paper{fill:var(--paper)}.panel{font-size:14px;font-weight:600;fill:var(--ink)}"
    )
    # The sizes are those of the picture, not of a page.
    return f"{own}{rules}.chart.framed{{width:{_WIDTH - _LEFT}px;padding:0}}.dense .dot{{display:none}}"
