"""Backoff between restarts of a process, for the server supervisor and for model servers that run an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Restarts:
    """Exponential backoff between restarts of a process that died. All times are in seconds."""

    first_pause_s: float = 0.2
    longest_pause_s: float = 30.0
    reset_after_s: float = 60.0
    """The backoff starts over after a process has run for at least this long."""

    def next_pause_s(self, last_pause_s: float) -> float:
        """Return the pause before the next restart: twice `last_pause_s`, at most `longest_pause_s`.

        Before the first restart, pass 0.0; the pause is then `first_pause_s`.
        """
        return min(2 * last_pause_s or self.first_pause_s, self.longest_pause_s)
