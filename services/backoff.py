"""Restart policy, used by the supervisor of servers and by model servers that keep an engine running."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Restarts:
    """How long to wait before a process that died is started again. All times are seconds."""

    first_pause_s: float = 0.2
    longest_pause_s: float = 30.0
    calm_after_s: float = 60.0
    """A process that ran for at least this long resets the backoff."""

    def next_pause_s(self, last_pause_s: float) -> float:
        """The pause after one of `last_pause_s` (0.0 for the first): it doubles up to the longest."""
        return min(2 * last_pause_s or self.first_pause_s, self.longest_pause_s)
