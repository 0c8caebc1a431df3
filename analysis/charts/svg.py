"""Builds SVG as strings. `Svg` is safe markup and plain `str` is not; `escaped` turns untrusted text into markup.

It also writes numbers for charts and captions; those of the report's tables are in `report/formatting.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NewType, Protocol

Svg = NewType("Svg", str)
Value = str | float | None


def escaped(text: str) -> Svg:
    """Escape text for use in markup. Invisible and bidirectional characters are replaced with their code points."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else _code(letter) for letter in text)
    return Svg(escape(text))


def tag(name: str, attributes: Mapping[str, Value], *children: Svg) -> Svg:
    """Build an element. Attributes whose value is None are omitted."""
    encoded = "".join(
        f' {key}="{escaped(value) if isinstance(value, str) else f"{round(value, 2):g}"}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Svg(f"<{name}{encoded}>{''.join(children)}</{name}>" if children else f"<{name}{encoded}/>")


def text(content: str, x: Value, y: float, kind: str | None = None, **attributes: Value) -> Svg:
    return tag("text", {"class": kind, "x": x, "y": y, **attributes}, escaped(content))


def percent(part: float) -> str:
    """Format a horizontal position as a percentage: 0 is the left edge, 1 the right edge."""
    return f"{round(100 * part, 3):g}%"


def mark(tip: str, shapes: Iterable[Svg], href: str | None = None, *, tab_stop: bool = True) -> Svg:
    """Group shapes and add a tooltip and an optional link. `tab_stop` makes the link reachable with the Tab key."""
    inner = (tag("title", {}, escaped(tip)), *shapes)
    if href is None:
        return tag("g", {"class": "mark"}, *inner)
    return tag("a", {"class": "mark", "href": href, "aria-label": tip, "tabindex": None if tab_stop else "-1"}, *inner)


def drawing(label: str, height: float, shapes: Iterable[Svg], kind: str, *, linked: bool = False) -> Svg:
    """Build the root element of a chart. `linked`: it has links, which the role `img` would hide."""
    role = "group" if linked else "img"
    size: dict[str, Value] = {"width": "100%", "height": height}
    return tag("svg", {"class": f"chart {kind}", **size, "role": role, "aria-label": label}, *shapes)


def cut(content: str, letters: int) -> str:
    """Truncate text to at most `letters` characters, including an ellipsis."""
    return content if len(content) <= letters else f"{content[: letters - 1]}…"


def _code(letter: str) -> str:
    point = ord(letter)
    return f"\\u{{{point:x}}}" if point > 0xFFFF else f"\\u{point:04x}"


STYLE = Path(__file__).parent / "charts.css"


_NOISE = 1e-12
"""Absolute values below this are treated as rounding errors and shown as 0."""
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k"))


def short(value: float) -> str:
    """Format a number with four significant digits and no trailing zeros: `0.9305`, `−2.639`, `12.35k`, `5e+59`."""
    size = abs(value)
    if size < _NOISE:
        return "0"
    if size >= 1e15 or size < 1e-4:
        text = f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e+")
    elif size >= 1e4:
        unit, name = next((unit, name) for unit, name in _UNITS if size >= unit)
        divisor = 1e3 if name == "k" else unit
        text = f"{float(f'{value / divisor:.4g}'):,g}{name}"
    else:
        text = f"{float(f'{value:.4g}'):,.4f}".rstrip("0").rstrip(".")
    return text if "e-" in text and not text.startswith("-") else text.replace("-", "−", 1)


def share(part: float, digits: int = 1) -> str:
    """Format a share as a percentage: `13.5%`."""
    return f"{part:.{digits}%}".replace("-", "−")


def signed(value: float) -> str:
    """Format a difference with its sign: `+0.25`."""
    return f"+{short(value)}" if value >= _NOISE else short(value)


def points(value: float) -> str:
    """Format the difference between two shares: `+3.1 points`."""
    return f"{signed(round(100 * value, 2))} points"


def seconds(value: float) -> str:
    """Format a duration: `4.1 ms`, `3.24 s`, `4 min 34 s`, `2 h 5 min`."""
    if value < 1:
        return f"{short(float(f'{1000 * value:.3g}'))} ms"
    if value < 120:
        return f"{short(float(f'{value:.3g}'))} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


class Links(Protocol):
    def rollouts(self, **filters: str | float) -> str:
        """Return the URL of the list of rollouts with these filters."""
        ...

    def task(self, task: int) -> str: ...


_LARGEST = 1e300
"""Values are clamped to ± this bound so that their differences cannot overflow."""


@dataclass(frozen=True)
class Axis:
    """The title of an axis and the format of its tick labels."""

    title: str
    percent: bool = False
    """Whether values are shares, which are shown as percentages."""
    zoomed: bool = False
    """Whether an axis in percent covers only the values, not 0 to 100%."""
    points: bool = False
    """Whether values are differences between shares, which are shown in percentage points."""
    integers: bool = False
    """Whether all ticks are integers."""
    log10: bool = False
    """Whether values are decimal logarithms, so that labels show the powers."""
    names: Callable[[int], str] | None = None
    """Returns the label of an integer, if values are numbers of something that has a name."""

    def label(self, value: float, step: float) -> str:
        """Return the label of the tick at `value`; `step` is the distance between ticks."""
        if self.names is not None:
            return self.names(round(value))
        if self.log10:
            return short(10.0**value)
        if self.percent:
            return f"{100 * value:.{0 if step >= 0.01 else 1}f}%".replace("-", "−")
        if self.points:
            value, step = 100 * value, 100 * step
        return short(0.0 if abs(value) < step / 1e6 else value)


class AxisScale:
    """A range of values with ticks at round numbers."""

    def __init__(self, low: float, high: float, *, ticks: int = 5, integers: bool = False) -> None:
        """`ticks` is the approximate number of ticks."""
        low, high = max(low, -_LARGEST), min(high, _LARGEST)
        if high <= low:
            room = max(abs(low), 1.0) / 2
            low, high = low - room, low + room
        self.low, self.high = low, high
        rough = (high - low) / ticks
        power = 10.0 ** math.floor(math.log10(rough))
        self.step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough * 0.999)
        if integers:
            self.step = max(1.0, self.step)
        first = math.ceil(low / self.step - 1e-9)
        last = math.floor(high / self.step + 1e-9)
        self.ticks = [number * self.step for number in range(first, last + 1)]

    def part(self, value: float) -> float:
        """Return the position of a value as a fraction: 0 at the low end, 1 at the high end."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


_LETTER = 8.0
"""Upper bound on the width of a digit, in pixels."""
NARROW = 280.0
"""Width in pixels of the narrowest plot in which labels must fit (on a phone 375 pixels wide)."""
_EDGE = 0.02
"""Tick labels closer to an edge than this fraction of the width are aligned with the edge."""


@dataclass(frozen=True)
class PlotFrame:
    """The frame of a plot `height` pixels high, with the y-axis title above it and the x-axis ticks below it."""

    across: AxisScale
    up: AxisScale
    x: Axis
    y: Axis
    height: float = 150.0
    top: float = 24.0
    x_ticks: Sequence[float] | None = None
    """Ticks on the horizontal axis; by default, the ticks of `across`."""

    @property
    def total_height(self) -> float:
        return self.top + self.height + 38

    def at(self, value: float) -> float:
        return self.top + self.height * (1 - self.up.part(value))

    def around(self, marks: Sequence[Svg]) -> list[Svg]:
        """Return the grid, the marks and the labels, ordered from back to front."""
        grid, labels = [], [text(self.y.title, -46, 11, "title")]
        for tick in self.up.ticks:
            at = round(self.at(tick), 1)
            kind = "zero" if abs(tick) < self.up.step / 1e6 else "grid"
            grid.append(tag("line", {"class": kind, "x1": "0", "x2": "100%", "y1": at, "y2": at}))
            labels.append(text(self.y.label(tick, self.up.step), -6, at + 4, "end"))
        foot = self.top + self.height
        return [*grid, *marks, *labels, *ticks_below(self.across, self.x, foot, self.x_ticks)]


def ticks_below(across: AxisScale, x: Axis, foot: float, ticks: Sequence[float] | None = None) -> list[Svg]:
    """Draw the axis title and as many tick labels as fit on a phone screen below y = `foot`."""
    values = across.ticks if ticks is None else ticks
    labels = [(across.part(value), x.label(value, across.step)) for value in values]
    widest = max((len(label) for _, label in labels), default=1) * _LETTER + 10
    apart = (labels[1][0] - labels[0][0]) * NARROW if len(labels) > 1 else NARROW
    every = max(1, -int(-widest // max(apart, 1e-9)))
    drawn = []
    for part, label in labels[::every]:
        place = "start" if part < _EDGE else "end" if part > 1 - _EDGE else "middle"
        drawn.append(text(label, percent(part), foot + 17, f"tick {place}"))
    return [*drawn, text(x.title, "50%", foot + 34, "middle title")]
