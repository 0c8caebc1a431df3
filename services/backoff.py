"""Backoff between restarts of a process, for the server supervisor and for model servers that run an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Restarts:
    """Exponential backoff between restarts of a process that died. All times are in seconds."""

    first_pause_s: float = 0.2
    longest_pause_s: float = 30.0
    reset_after_s: float = 60.0
    """A process that ran for at least this long resets the backoff."""

    def next_pause_s(self, last_pause_s: float) -> float:
        """Return the next pause: twice `last_pause_s` (0.0 before the first restart), at most `longest_pause_s`."""
        return min(2 * last_pause_s or self.first_pause_s, self.longest_pause_s)
