"""The frame around marks: grid lines, ticks, and what the axes are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.services.charts.axis import Axis, Scale
from rollyard.services.charts.svg import Svg, percent, tag, text

_LETTER = 8.0
"""Pixels of a digit, generously."""
NARROW = 280.0
"""Pixels of the narrowest plot that labels must fit: a phone of 375 pixels."""
_EDGE = 0.02
"""Labels of ticks so close to an edge are aligned to it."""


@dataclass(frozen=True)
class Frame:
    """A plot `height` pixels high between its title above and its ticks below."""

    across: Scale
    up: Scale
    x: Axis
    y: Axis
    height: float = 150.0
    top: float = 24.0
    x_ticks: Sequence[float] | None = None
    """Instead of the scale's own."""

    @property
    def whole(self) -> float:
        """Height of the chart."""
        return self.top + self.height + 38

    def at(self, value: float) -> float:
        """Vertical position in pixels."""
        return self.top + self.height * (1 - self.up.part(value))

    def around(self, marks: Sequence[Svg]) -> list[Svg]:
        """Grid, marks and labels, from back to front."""
        grid, labels = [], [text(self.y.title, -46, 11, "title")]
        for tick in self.up.ticks:
            at = round(self.at(tick), 1)
            kind = "zero" if abs(tick) < self.up.step / 1e6 else "grid"
            grid.append(tag("line", {"class": kind, "x1": "0", "x2": "100%", "y1": at, "y2": at}))
            labels.append(text(self.y.label(tick, self.up.step), -6, at + 4, "end"))
        foot = self.top + self.height
        return [*grid, *marks, *labels, *ticks_below(self.across, self.x, foot, self.x_ticks)]


def ticks_below(across: Scale, x: Axis, foot: float, ticks: Sequence[float] | None = None) -> list[Svg]:
    """Labels below `foot`, as many as fit a phone, and the axis's title."""
    values = across.ticks if ticks is None else ticks
    labels = [(across.part(value), x.label(value, across.step)) for value in values]
    widest = max((len(label) for _, label in labels), default=1) * _LETTER + 10
    apart = (labels[1][0] - labels[0][0]) * NARROW if len(labels) > 1 else NARROW
    every = max(1, -int(-widest // max(apart, 1e-9)))
    made = [
        text(
            label,
            percent(part),
            foot + 17,
            f"tick {'start' if part < _EDGE else 'end' if part > 1 - _EDGE else 'middle'}",
        )
        for part, label in labels[::every]
    ]
    return [*made, text(x.title, "50%", foot + 34, "middle title")]
