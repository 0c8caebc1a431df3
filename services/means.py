"""Mean: of numbers as they come, in constant memory."""

from __future__ import annotations

import math


class Mean:
    """A mean with its standard error (Welford, Technometrics 4(3), 1962)."""

    def __init__(self) -> None:
        self.count = 0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, value: float) -> None:
        """One more."""
        self.count += 1
        delta = value - self._mean
        self._mean += delta / self.count
        self._squares += delta * (value - self._mean)

    @property
    def value(self) -> float | None:
        """None of nothing."""
        return self._mean if self.count else None

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean; None below two."""
        return math.sqrt(self._squares / (self.count - 1) / self.count) if self.count > 1 else None
