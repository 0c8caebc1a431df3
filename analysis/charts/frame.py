"""Draws the frame of a plot: grid lines, ticks and axis titles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.analysis.charts.axis import Axis, Scale
from rollyard.analysis.charts.svg import Svg, percent, tag, text

_LETTER = 8.0
"""Upper bound on the width of a digit, in pixels."""
NARROW = 280.0
"""Width in pixels of the narrowest plot in which labels must fit (on a phone 375 pixels wide)."""
_EDGE = 0.02
"""Tick labels closer to an edge than this fraction of the width are aligned with the edge."""


@dataclass(frozen=True)
class Frame:
    """The frame of a plot `height` pixels high, with the y-axis title above it and the x-axis ticks below it."""

    across: Scale
    up: Scale
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
        """Return the vertical position of a value in pixels."""
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


def ticks_below(across: Scale, x: Axis, foot: float, ticks: Sequence[float] | None = None) -> list[Svg]:
    """Draw the tick labels and the axis title below y = `foot`.

    If the tick labels would overlap on a phone screen, only every n-th label is drawn.
    """
    values = across.ticks if ticks is None else ticks
    labels = [(across.part(value), x.label(value, across.step)) for value in values]
    widest = max((len(label) for _, label in labels), default=1) * _LETTER + 10
    apart = (labels[1][0] - labels[0][0]) * NARROW if len(labels) > 1 else NARROW
    every = max(1, -int(-widest // max(apart, 1e-9)))
    drawn = [
        text(
            label,
            percent(part),
            foot + 17,
            f"tick {'start' if part < _EDGE else 'end' if part > 1 - _EDGE else 'middle'}",
        )
        for part, label in labels[::every]
    ]
    return [*drawn, text(x.title, "50%", foot + 34, "middle title")]
