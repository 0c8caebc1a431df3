"""StartupProgress: prints what starting servers are doing."""

from __future__ import annotations

import time
from collections.abc import Callable

REPORT_EVERY_S = 15.0
"""Interval between messages about a starting server. A new phase is reported immediately."""


class StartupProgress:
    """Prints the startup phases of servers: a new phase at once, new counts (3/8, 4/8) every `REPORT_EVERY_S`."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._started_at = time.monotonic()
        self._reported: dict[str, tuple[str, float]] = {}

    def report(self, title: str, phase: str) -> None:
        """Report that `title` is in `phase`; an empty phase prints nothing."""
        kind, now = phase.rstrip("0123456789/ "), time.monotonic()
        reported, reported_at = self._reported.get(title, ("", 0.0))
        if phase and (kind != reported or now - reported_at > REPORT_EVERY_S):
            self._reported[title] = kind, now
            self._print_line(f"  {title:<36} {phase}, {now - self._started_at:.0f} s")
