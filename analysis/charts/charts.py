"""Chart, the record of a chart (SVG, caption, data as a table), and its forms: bars, histogram, lines and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import Field

from rollyard.analysis.charts.svg import (
    NARROW,
    Axis,
    AxisScale,
    PlotFrame,
    Svg,
    Value,
    cut,
    drawing,
    mark,
    percent,
    tag,
    text,
    ticks_below,
)
from rollyard.records.types import Record


class ChartLink(Record):
    text: str
    href: str


class NumberRow(Record):
    cells: list[str]
    href: str | None = None
    """What the corresponding mark in the chart links to."""


class NumberTable(Record):
    head: list[str]
    rows: list[NumberRow]


class Chart(Record):
    """A chart. `svg` is safe markup; all other text fields are plain text that must be escaped."""

    name: str
    """Identifies the kind of chart, such as `pass_at`."""
    title: str
    svg: str
    caption: str
    links: list[ChartLink] = Field(default_factory=list)
    """Shown after the caption."""
    numbers: NumberTable | None = None


class Charts(Record):
    charts: list[Chart]


def table(head: Sequence[str], rows: Sequence[tuple[Sequence[str], str | None]]) -> NumberTable:
    return NumberTable(head=list(head), rows=[NumberRow(cells=list(cells), href=href) for cells, href in rows])


def chart(
    name: str, title: str, svg: Svg, caption: str, numbers: NumberTable | None = None, links: Sequence[ChartLink] = ()
) -> Chart:
    return Chart(name=name, title=title, svg=svg, caption=caption, numbers=numbers, links=list(links))


MAX_ROWS = 12
_LETTERS = 38
"""Maximum length of a name in characters; a longer one would not fit on a phone screen."""
_PITCH = 38
_LETTER = 7.4


@dataclass(frozen=True)
class ChartRow:
    name: str
    value: float
    label: str
    href: str | None = None


def bars(label: str, rows: Sequence[ChartRow]) -> Svg:
    """Draw the first twelve rows as bars, scaled to the largest value."""
    rows = rows[:MAX_ROWS]
    most = max((row.value for row in rows), default=0.0) or 1.0
    label_width = max((len(row.label) for row in rows), default=0) * _LETTER + 10
    longest = max(0.15, 1 - label_width / NARROW)
    shapes = []
    for index, row in enumerate(rows):
        top = index * _PITCH
        size = max(longest * max(row.value, 0.0) / most, 0.004)
        marks = (
            tag("rect", {"class": "hit", "x": "0", "width": "100%", "y": top, "height": _PITCH - 2}),
            text(cut(row.name, _LETTERS), "0", top + 12, "name"),
            tag("rect", {"class": "bar", "x": "0", "width": percent(size), "y": top + 18, "height": 12, "rx": 2}),
            text(row.label, percent(size), top + 28, "value", dx=7),
        )
        shapes.append(mark(f"{row.name}: {row.label}", marks, row.href))
    return drawing(label, len(rows) * _PITCH, shapes, "rows", linked=True)


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
    up = AxisScale(min(0.0, *values, 0.0), max(0.0, *values) or 1.0, ticks=6, integers=y.integers)
    frame = PlotFrame(AxisScale(low, high, ticks=8, integers=x.integers), up, x, y, x_ticks=x_ticks)
    marks = []
    for bar, edge in zip(bars, edges, strict=True):
        left, right = map(frame.across.part, edge)
        top, foot = sorted((frame.at(bar.value), frame.at(0.0)))
        room = 0.06 * (right - left) if bar.high > bar.low else 0.0
        position = {"x": percent(left + room / 2), "width": percent(max(right - left - room, 0.003))}
        shapes = (
            tag("rect", {"class": "hit", **position, "y": frame.top, "height": frame.height}),
            tag("rect", {"class": "bar", **position, "y": top, "height": max(foot - top, 0.0)}),
        )
        # Bars are not tab stops, because there may be many; the table of numbers has the same links.
        marks.append(mark(bar.tip, shapes, bar.href, tab_stop=False))
    linked = any(bar.href for bar in bars)
    return drawing(label, frame.total_height, frame.around(marks), "framed", linked=linked)


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
    name: str
    points: Sequence[Point]


def lines(label: str, drawn: Sequence[Line], x: Axis, y: Axis) -> Svg:
    """Draw the lines with at most 128 points each. An axis in percent goes from 0 to 100%, unless it is zoomed."""
    drawn = [Line(line.name, _thinned(line.points)) for line in drawn]
    points = [point for line in drawn for point in line.points]
    values = [value for p in points for value in (p.y, p.low, p.high) if value is not None]
    low, high = (0.0, 1.0) if y.percent and not y.zoomed else (min(values), max(values))
    across = AxisScale(min(p.x for p in points), max(p.x for p in points), ticks=8, integers=x.integers)
    frame = PlotFrame(across, AxisScale(low, high, ticks=6), x, y)
    shapes = [_plot(frame, line, f"s{number}") for number, line in enumerate(drawn)]
    for number, line in enumerate(drawn):
        for p in line.points:
            place: dict[str, Value] = {"cx": percent(frame.across.part(p.x)), "cy": frame.at(p.y), "r": 3}
            shapes.append(mark(p.tip, (tag("circle", {"class": f"dot s{number}", **place}),), p.href, tab_stop=False))
    linked = any(p.href for p in points)
    return drawing(label, frame.total_height, frame.around([*shapes, *_names(frame, drawn)]), "framed", linked=linked)


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return at most 128 evenly spaced points, including the first and the last."""
    if len(points) <= _MAX_POINTS:
        return points
    return [points[round(index * (len(points) - 1) / (_MAX_POINTS - 1))] for index in range(_MAX_POINTS)]


def plot(frame: PlotFrame, shapes: Sequence[Svg]) -> Svg:
    """Wrap shapes in a view box that stretches over the plot. It is 1000 units wide and one unit high per pixel."""
    box = f"0 {frame.top:g} {_UNITS:g} {frame.height:g}"
    position: dict[str, Value] = {"x": "0", "y": frame.top, "width": "100%", "height": frame.height}
    return tag("svg", {"class": "plot", **position, "viewBox": box, "preserveAspectRatio": "none"}, *shapes)


def spot(frame: PlotFrame, x: float, y: float) -> str:
    """Return the coordinates of a point in the view box of `plot`, as `x,y`."""
    return f"{_UNITS * frame.across.part(x):.1f},{frame.at(y):.1f}"


def _plot(frame: PlotFrame, line: Line, kind: str) -> Svg:
    banded = [(p.x, p.low, p.high) for p in line.points if p.low is not None and p.high is not None]
    shapes = []
    if len(banded) > 1:
        around = [spot(frame, x, high) for x, _, high in banded]
        around += [spot(frame, x, low) for x, low, _ in reversed(banded)]
        shapes.append(tag("polygon", {"class": f"band {kind}", "points": " ".join(around)}))
    path = " ".join(spot(frame, p.x, p.y) for p in line.points)
    return plot(frame, [*shapes, tag("polyline", {"class": f"line {kind}", "points": path})])


def _names(frame: PlotFrame, drawn: Sequence[Line]) -> list[Svg]:
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
    frame = PlotFrame(AxisScale(min(xs), max(xs), ticks=6), AxisScale(min(ys), max(ys), ticks=6), x, y)
    shapes: list[Svg] = []
    if diagonal:
        low, high = min(xs), max(xs)
        ends = f"{spot(frame, low, low)} {spot(frame, high, high)}"
        shapes.append(plot(frame, [tag("polyline", {"class": "line s2", "points": ends})]))
    for pair in sorted(pairs, key=lambda one: one.marked):
        place: dict[str, Value] = {"cx": percent(frame.across.part(pair.x)), "cy": frame.at(pair.y), "r": 3}
        dot = tag("circle", {"class": f"dot {'s1' if pair.marked else 's0'}", **place})
        shapes.append(mark(pair.tip, (dot,), tab_stop=False))
    return drawing(label, frame.total_height, frame.around(shapes), "framed")


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
    labels = [*enumerate(columns)][::every]
    shapes += [text(name, percent((place + 0.5) * width), 11, "middle") for place, name in labels]
    for number, (name, cells) in enumerate(rows):
        top = _HEAD + number * _CELL
        shapes.append(text(name, -6, top + _CELL - 3, "end"))
        for place, cell in enumerate(cells):
            if cell is not None:
                value, tip = cell
                opacity = _FAINTEST + (1 - _FAINTEST) * min(max(value, 0.0), 1.0)
                size: dict[str, Value] = {"x": percent(place * width), "width": percent(width), "y": top}
                shapes.append(
                    mark(tip, (tag("rect", {"class": "cell", **size, "height": _CELL - 1, "fill-opacity": opacity}),))
                )
    return drawing(label, _HEAD + len(rows) * _CELL + 4, shapes, "framed")


_INTERVALS_LETTERS = 40
_INTERVALS_PITCH = 42


@dataclass(frozen=True)
class DrawnInterval:
    """An estimate and its confidence interval. If there is no interval, `low` and `high` are None."""

    name: str
    mean: float
    low: float | None
    high: float | None
    tip: str


def intervals(label: str, rows: Sequence[DrawnInterval], x: Axis, *, zero: bool = False) -> Svg:
    """Draw each estimate as a dot on its interval, below its name. `zero` adds a line at zero."""
    ends = [value for row in rows for value in (row.mean, row.low, row.high) if value is not None]
    ends += [0.0] if zero else []
    room = (max(ends) - min(ends)) * 0.06
    across = AxisScale(min(ends) - room, max(ends) + room)
    foot = 8 + _INTERVALS_PITCH * len(rows)
    shapes = [
        tag("line", {"class": "grid", "x1": percent(at), "x2": percent(at), "y1": 4, "y2": foot})
        for at in map(across.part, across.ticks)
    ]
    if zero:
        at = percent(across.part(0.0))
        shapes.append(tag("line", {"class": "zero", "x1": at, "x2": at, "y1": 4, "y2": foot}))
    for index, row in enumerate(rows):
        top, y = 16 + index * _INTERVALS_PITCH, 31 + index * _INTERVALS_PITCH
        height = _INTERVALS_PITCH - 4
        marks = [tag("rect", {"class": "hit", "x": "0", "width": "100%", "y": top - 12, "height": height})]
        if row.low is not None and row.high is not None:
            ends_at = {"x1": percent(across.part(row.low)), "x2": percent(across.part(row.high))}
            marks.append(tag("line", {"class": "reach", **ends_at, "y1": y, "y2": y}))
        marks.append(tag("circle", {"class": "dot s0", "cx": percent(across.part(row.mean)), "cy": y, "r": 5}))
        shapes += [mark(row.tip, marks), text(cut(row.name, _INTERVALS_LETTERS), -16, top, "name")]
    return drawing(label, foot + 38, [*shapes, *ticks_below(across, x, foot)], "intervals")


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
    """Draw a curve or unconnected points. Of a long series, the lowest and the highest number of each range."""
    across = AxisScale(xs[0], xs[-1], ticks=5, integers=x.integers)
    frame = PlotFrame(
        across, AxisScale(min(0.0, *ys), max(0.0, *ys) or 1.0, ticks=5, integers=y.integers), x, y, height=height
    )
    spots = [spot(frame, xs[index], ys[index]) for index in drawn_indexes(ys)]
    if points:
        # A zero-length stroke with round caps stays a round dot when the plot is stretched.
        shape = tag("path", {"class": f"spots {kind}", "d": "".join(f"M{at}h0" for at in spots)})
    else:
        shape = tag("polyline", {"class": f"line {kind}", "points": " ".join(spots)})
    columns = [column(frame, xs, part, describe) for part in ranges(len(xs), MAX_COLUMNS)]
    area = tag("rect", {"class": "area", "x": "0", "y": frame.top, "width": "100%", "height": frame.height})
    return drawing(label, frame.total_height, frame.around([area, plot(frame, [shape, *columns])]), "framed series")


def column(frame: PlotFrame, xs: Sequence[float], part: range, describe: Tooltip) -> Svg:
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
