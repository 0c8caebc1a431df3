"""Backoff: the pauses between attempts at the same thing, such as restarts of a process or retries of a call."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff: each pause is twice as long as the one before. All times are in seconds."""

    first_pause_s: float = 0.2
    longest_pause_s: float = 30.0
    reset_after_s: float = 60.0
    """For processes: the failures of one that has run for at least this long are forgotten."""
    jitter: float = 0.0
    """Share of each pause that is random, so that what failed together is not repeated together."""

    def pause_s(self, failures: int) -> float:
        """Return the pause after so many failures in a row; 0 after none."""
        if failures < 1:
            return 0.0
        longest = min(self.first_pause_s * 2.0 ** min(failures - 1, 60), self.longest_pause_s)
        return longest * random.uniform(1.0 - self.jitter, 1.0) if self.jitter else longest
