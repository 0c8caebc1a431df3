"""Pictures: small SVG charts with words for those who do not see them. Colours are the page's (`page.css`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 480, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 14, 46
_DOTS = 64
"""Points of a line up to which each is drawn."""
_LETTER = 8.0
"""Width of a digit in a picture where it is largest, on a phone (`page.css`)."""


@dataclass(frozen=True)
class Bar:
    """From `low` to `high` on the horizontal axis (equal: a single value), `value` high."""

    low: float
    high: float
    value: float
    tip: str


@dataclass(frozen=True)
class Point:
    """A point with its interval, where it has one."""

    x: float
    y: float
    low: float | None
    high: float | None
    tip: str


@dataclass(frozen=True)
class Line:
    """A named row of points."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Axis:
    """What an axis is called, and whether its numbers are shares."""

    title: str
    percent: bool = False
    whole: bool = False
    """Only whole numbers make sense on it."""

    def label(self, value: float, step: float) -> str:
        """A tick's text."""
        if self.percent:
            return f"{100 * value:.{0 if step >= 0.01 else 1}f}%"
        digits = max(0, -math.floor(math.log10(step))) if step < 1 else 0
        return f"{value + 0.0:,.{digits}f}".replace("-", "−")


class _Scale:
    """Values -> places on the paper, with round ticks."""

    def __init__(self, low: float, high: float, start: float, stop: float, *, whole: bool = False) -> None:
        if high <= low:
            low, high = low - 0.5, high + 0.5
        self._low, self._high, self._start, self._stop = low, high, start, stop
        rough = (high - low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        self.step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough * 0.999)
        if whole:
            self.step = max(1.0, self.step)
        first = math.ceil(low / self.step - 1e-9)
        last = math.floor(high / self.step + 1e-9)
        self.ticks = [number * self.step for number in range(first, last + 1)]

    def at(self, value: float) -> float:
        part = (value - self._low) / (self._high - self._low)
        return self._start + part * (self._stop - self._start)


def histogram(title: str, bars: Sequence[Bar], x: Axis, y: Axis) -> str:
    """Bars to scale on the horizontal axis."""
    values = [bar.value for bar in bars]
    edges = [edge for bar in bars for edge in (bar.low, bar.high)]
    gaps = [b.low - a.low for a, b in pairwise(bars)]
    margin = min(gaps) / 2 if gaps and all(bar.low == bar.high for bar in bars) else 0.0
    across = _Scale(
        min(edges) - margin - (0.5 if len(bars) == 1 else 0),
        max(edges) + margin + (0.5 if len(bars) == 1 else 0),
        _LEFT,
        WIDTH - _RIGHT,
        whole=x.whole,
    )
    up = _Scale(min(0.0, *values, 0.0), max(0.0, *values, 1e-12), HEIGHT - _BOTTOM, _TOP, whole=y.whole)
    shapes = []
    for bar in bars:
        left, right = across.at(bar.low), across.at(bar.high)
        if bar.low == bar.high:
            wide = 0.8 * abs(across.at(min(gaps, default=1.0)) - across.at(0.0))
            half = max(1.0, min(18.0, wide / 2))
            left, right = left - half, right + half
        top, foot = sorted((up.at(bar.value), up.at(0.0)))
        wide = max(right - left - 0.6, 0.8)
        shapes.append(
            f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{max(foot - top, 0):.1f}">'
            f"<title>{escape(bar.tip)}</title></rect>"
        )
    return _framed(title, shapes, across, up, x, y)


def lines(title: str, drawn: Sequence[Line], x: Axis, y: Axis) -> str:
    """Lines with their intervals as bands; the second one is dashed, and named in a legend."""
    points = [point for line in drawn for point in line.points]
    ends = [value for p in points for value in (p.y, p.low, p.high) if value is not None]
    across = _Scale(min(p.x for p in points), max(p.x for p in points), _LEFT + 8, WIDTH - _RIGHT - 8, whole=x.whole)
    low, high = (0.0, 1.0) if y.percent else (min(ends), max(ends))
    up = _Scale(low, high, HEIGHT - _BOTTOM, _TOP + 20)
    shapes = []
    for index, line in enumerate(drawn):
        banded = [p for p in line.points if p.low is not None and p.high is not None]
        if len(banded) > 1:
            way = [(p.x, p.high) for p in banded] + [(p.x, p.low) for p in reversed(banded)]
            band = " ".join(f"{across.at(at):.1f},{up.at(value or 0.0):.1f}" for at, value in way)
            shapes.append(f'<polygon class="band s{index}" points="{band}"/>')
        way_text = " ".join(f"{across.at(p.x):.1f},{up.at(p.y):.1f}" for p in line.points)
        shapes.append(f'<polyline class="line s{index}" points="{way_text}"/>')
        for p in line.points if len(line.points) <= _DOTS else ():
            shapes.append(
                f'<circle class="dot s{index}" cx="{across.at(p.x):.1f}" cy="{up.at(p.y):.1f}" r="3">'
                f"<title>{escape(p.tip)}</title></circle>"
            )
        at = _LEFT + index * 190
        shapes.append(f'<line class="line s{index}" x1="{at}" y1="14" x2="{at + 26}" y2="14"/>')
        shapes.append(f'<text x="{at + 32}" y="18">{escape(line.name)}</text>')
    return _framed(title, shapes, across, up, x, y)


def rows(title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars: (name, value, text beside it). The longest fills the width."""
    most = max((value for _, value, _ in bars), default=0.0) or 1.0
    pitch, shapes = 40, []
    for index, (name, value, text) in enumerate(bars):
        top = 6 + index * pitch
        wide = (WIDTH - 2 * _RIGHT) * max(value, 0.0) / most
        shapes.append(f'<text x="{_RIGHT}" y="{top + 12}">{escape(_cut(name, 34))}</text>')
        shapes.append(f'<text class="end" x="{WIDTH - _RIGHT}" y="{top + 12}">{escape(text)}</text>')
        shapes.append(f'<rect class="bar" x="{_RIGHT}" y="{top + 18}" width="{max(wide, 1):.1f}" height="12" rx="2"/>')
    return _svg(title, shapes, 12 + len(bars) * pitch)


def intervals(title: str, drawn: Sequence[Line], x: Axis, *, zero: bool = False) -> str:
    """A dot with its interval a row, the row's name above it; `zero`: with the line of no difference."""
    points = [line.points[0] for line in drawn]
    ends = [value for p in points for value in (p.x, p.low, p.high) if value is not None] + ([0.0] if zero else [])
    room = (max(ends) - min(ends)) * 0.06
    across = _Scale(min(ends) - room, max(ends) + room, _RIGHT + 12, WIDTH - _RIGHT - 12)
    pitch, foot = 42, 10 + 42 * len(points)
    shapes = _ticks_across(across, x, 4, foot)
    if zero:
        shapes.append(f'<line class="zero" x1="{across.at(0):.1f}" x2="{across.at(0):.1f}" y1="4" y2="{foot}"/>')
    for index, (line, p) in enumerate(zip(drawn, points, strict=True)):
        top, y = 18 + index * pitch, 32 + index * pitch
        shapes.append(f'<text x="{_RIGHT}" y="{top}">{escape(_cut(line.name, 58))}</text>')
        if p.low is not None and p.high is not None:
            left, right = across.at(p.low), across.at(p.high)
            shapes.append(f'<line class="reach" x1="{left:.1f}" x2="{right:.1f}" y1="{y}" y2="{y}"/>')
        tip = f"<title>{escape(p.tip)}</title>"
        shapes.append(f'<circle class="dot s0" cx="{across.at(p.x):.1f}" cy="{y}" r="5">{tip}</circle>')
    return _svg(title, shapes, foot + _BOTTOM - 6)


def _framed(title: str, shapes: Sequence[str], across: _Scale, up: _Scale, x: Axis, y: Axis) -> str:
    grid = []
    for tick in up.ticks:
        at = up.at(tick)
        kind = "zero" if abs(tick) < up.step / 1e6 else "grid"
        grid.append(f'<line class="{kind}" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        grid.append(f'<text class="end" x="{_LEFT - 6}" y="{at + 4:.1f}">{y.label(tick, up.step)}</text>')
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    grid.append(f'<text class="axis" transform="translate(12 {middle:.0f}) rotate(-90)">{escape(y.title)}</text>')
    return _svg(title, [*grid, *_ticks_across(across, x, None, HEIGHT - _BOTTOM), *shapes], HEIGHT)


def _ticks_across(across: _Scale, x: Axis, top: float | None, foot: float) -> list[str]:
    """Numbers below `foot`, as many as fit; with `top`, grid lines too."""
    labels = [(across.at(tick), x.label(tick, across.step)) for tick in across.ticks]
    widest = max((len(text) for _, text in labels), default=1) * _LETTER + 10
    between = abs(labels[1][0] - labels[0][0]) if len(labels) > 1 else WIDTH
    every = max(1, math.ceil(widest / between))
    shapes = [f'<text class="axis" x="{(_LEFT + WIDTH) / 2:.0f}" y="{foot + 36:.0f}">{escape(x.title)}</text>']
    for at, text in labels[::every]:
        if top is not None:
            shapes.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top:.1f}" y2="{foot:.1f}"/>')
        shapes.append(f'<text class="axis" x="{at:.1f}" y="{foot + 17:.1f}">{text}</text>')
    return shapes


def _svg(title: str, shapes: Sequence[str], height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(shapes)}</svg>'


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
