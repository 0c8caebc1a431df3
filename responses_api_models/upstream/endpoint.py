"""Endpoint: one address of a pool while it is up, and whether calls should go there now.

Every failure that points at the endpoint cools it down: calls prefer the others. When the cool-down is over, one call
at a time probes it. A failed probe doubles the cool-down, and an answer where it failed before ends it at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

FIRST_COOL_DOWN_S = 1.0
LONGEST_COOL_DOWN_S = 60.0
DOWN_AFTER = 3
"""Failures in a row after which episodes that began there are given up."""


@dataclass(slots=True, eq=False)
class Endpoint:
    """An address while it is up. One that comes back is another: its engine may hold other weights."""

    url: str
    in_flight: int = 0
    chosen: int = 0
    """Serial of the last choice that fell on it: of equally busy ones the longest unchosen comes first."""
    model: str = ""
    """Name of the model in its latest answer."""
    failures: int = 0
    """In a row, those left out that say no more than "not now" (429)."""
    cool_downs: int = 0
    """In a row; 0 means healthy."""
    cooling_since: float = 0.0
    cooling_until: float = 0.0
    _failed_path: str = ""
    _probes: int = 0

    @property
    def is_down(self) -> bool:
        """Nothing came of it for several calls in a row."""
        return self.failures >= DOWN_AFTER

    def is_usable(self, now: float) -> bool:
        """False while it cools down, and while a probe is on its way."""
        return not self.cool_downs or (now >= self.cooling_until and not self._probes)

    def fail(self, path: str, begun: float, *, pause_s: float = 0.0, counts: bool = True) -> None:
        """A call of `path` that began at `begun` failed; `pause_s` is what the endpoint asked for."""
        now = time.monotonic()
        self._failed_path = path
        self.failures += counts
        if now < self.cooling_until:
            self.cooling_until = max(self.cooling_until, now + pause_s)
            return
        # Calls that were under way when the last cool-down began tell of the same trouble.
        if not self.cool_downs or begun >= self.cooling_since:
            self.cool_downs += 1
        cool_down_s = min(FIRST_COOL_DOWN_S * 2 ** min(self.cool_downs - 1, 10), LONGEST_COOL_DOWN_S)
        self.cooling_since, self.cooling_until = now, now + max(cool_down_s, pause_s)

    def succeed(self, path: str) -> None:
        """A call of `path` was answered. Of an endpoint that fails at another path this says nothing."""
        if self.cool_downs and path == self._failed_path:
            self.recover()

    def recover(self) -> None:
        """Healthy from now on."""
        self.failures = self.cool_downs = 0
        self.cooling_until = 0.0

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count a call while it lasts; as a probe where it begins in doubt."""
        probe = self.cool_downs > 0
        self.in_flight += 1
        self._probes += probe
        try:
            yield
        finally:
            self.in_flight -= 1
            self._probes -= probe
