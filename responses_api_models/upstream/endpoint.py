"""Tracks the health of one URL in a pool, to decide whether calls should be sent to it now.

Every failure caused by the endpoint starts a cool-down, during which calls prefer other endpoints. Afterwards, one call
at a time probes it. A failed probe doubles the cool-down; a success on the path that failed ends it immediately.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from rollyard.services.backoff import Backoff

COOL_DOWNS = Backoff(first_pause_s=1.0, longest_pause_s=60.0)
DOWN_AFTER = 3
"""Number of consecutive failures after which the episodes bound to the endpoint are abandoned."""


@dataclass(slots=True, eq=False)
class Endpoint:
    """A URL while its server is up. A restarted engine is a new Endpoint, because it may have different weights."""

    url: str
    in_flight: int = 0
    chosen: int = 0
    """Serial number of its last selection: among equally busy endpoints, the least recently chosen one is preferred."""
    model: str = ""
    """Model name in the endpoint's latest response."""
    failures: int = 0
    """Consecutive failures, not counting 429."""
    cool_downs: int = 0
    """Consecutive cool-downs; 0 means healthy."""
    cooling_since: float = 0.0
    cooling_until: float = 0.0
    answered_paths: set[str] = field(default_factory=set)
    """Paths on which it has answered a call."""
    _failed_path: str = ""
    _probes: int = 0

    @property
    def is_down(self) -> bool:
        """True after at least `DOWN_AFTER` consecutive failures."""
        return self.failures >= DOWN_AFTER

    def is_usable(self, now: float) -> bool:
        """Return False while the endpoint is cooling down or a probe is in flight."""
        return not self.cool_downs or (now >= self.cooling_until and not self._probes)

    def fail(self, path: str, started: float, *, pause_s: float = 0.0, counts: bool = True) -> None:
        """Record a failed call to `path` that started at `started` (monotonic time). `pause_s` is the pause that the
        response requested. `counts` is False if the failure does not count towards `is_down`.
        """
        now = time.monotonic()
        self._failed_path = path
        self.failures += counts
        if now < self.cooling_until:
            self.cooling_until = max(self.cooling_until, now + pause_s)
            return
        # Calls that were in flight when the last cool-down started failed for the same reason.
        if not self.cool_downs or started >= self.cooling_since:
            self.cool_downs += 1
        self.cooling_since, self.cooling_until = now, now + max(COOL_DOWNS.pause_s(self.cool_downs), pause_s)

    def succeed(self, path: str) -> None:
        """Record a successful call to `path`. It does not end a cool-down caused by a different path."""
        self.answered_paths.add(path)
        if self.cool_downs and path == self._failed_path:
            self.recover()

    def recover(self) -> None:
        """Mark the endpoint as healthy."""
        self.failures = self.cool_downs = 0
        self.cooling_until = 0.0

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count a call in flight; during a cool-down it also counts as a probe."""
        probe = self.cool_downs > 0
        self.in_flight += 1
        self._probes += probe
        try:
            yield
        finally:
            self.in_flight -= 1
            self._probes -= probe
