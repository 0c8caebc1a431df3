"""A clock for tests."""

from __future__ import annotations


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now
