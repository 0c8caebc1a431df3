"""Maps values to positions on an axis and chooses round ticks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rollyard.analysis.charts.labels import short

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


class Scale:
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
