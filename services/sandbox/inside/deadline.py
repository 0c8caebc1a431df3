"""Measures the deadline of a jail, excluding time spent waiting for a busy CPU."""

from __future__ import annotations

import os
import time

MAX_EXTENSION = 10
"""Upper bound on the extended deadline, as a multiple of the limit, in case the host never schedules the jail."""


class DeadlineClock:
    """Measures the seconds since the start, excluding time in which the jail was runnable but had no CPU."""

    def __init__(self, limit_s: float, proc: int, child: int) -> None:
        self.child = child
        self._started_at = time.monotonic()
        self._limit_s = limit_s
        self._proc = proc
        self._queued_s: dict[str, float] = {}
        """Process id of the tests or the answer -> seconds spent waiting for a CPU. Kept after the answer exits."""

    def left(self) -> float:
        """Return the seconds left. Extensions move the deadline to at most `MAX_EXTENSION` times the limit."""
        elapsed = time.monotonic() - self._started_at
        left = self._limit_s - elapsed
        if left <= 0:
            left = min(left + self._waited_s(), MAX_EXTENSION * self._limit_s - elapsed)
        return left

    def _waited_s(self) -> float:
        if not self._queued_s:
            # The tests' first child is the answer. Its orphans become further children, whose waiting must not count.
            children = self._read(f"{self.child}/task/{self.child}/children").split()
            self._queued_s = dict.fromkeys([str(self.child), *children[:1]], 0.0)
        for process, previous in self._queued_s.items():
            # The second number of schedstat: nanoseconds spent waiting for a processor.
            nanoseconds = (self._read(f"{process}/schedstat").split() or ["0", "0"])[1]
            self._queued_s[process] = max(previous, int(nanoseconds) / 1e9)
        return sum(self._queued_s.values())

    def _read(self, path: str) -> str:
        try:
            with open(os.open(path, os.O_RDONLY, dir_fd=self._proc)) as file:  # noqa: PTH123 (a descriptor)
                return file.read()
        except OSError:  # exited, or the kernel has no such count: use plain wall time
            return ""
