"""The deadline of a jail, by a clock that a busy machine does not turn."""

from __future__ import annotations

import os
import time

MOST_DELAY = 10
"""So many times the deadline is the end also on a machine that has no time for the jail."""


class DeadlineClock:
    """Seconds since the start, less those in which the jail was ready to run and the machine gave it no processor."""

    def __init__(self, limit_s: float, proc: int, child: int) -> None:
        self.child = child
        self._begun = time.monotonic()
        self._limit_s = limit_s
        self._proc = proc
        self._queued_s: dict[str, float] = {}
        """Of the tests and the answer, also when that one has ended: what it waited has been waited."""

    def left(self) -> float:
        """Until the deadline; it never moves beyond a multiple of itself."""
        passed = time.monotonic() - self._begun
        left = self._limit_s - passed
        if left <= 0:
            left = min(left + self._waited_s(), MOST_DELAY * self._limit_s - passed)
        return left

    def _waited_s(self) -> float:
        if not self._queued_s:
            # The tests' first child is the answer. Its orphans, which are theirs too, must not queue for it.
            children = self._read(f"{self.child}/task/{self.child}/children").split()
            self._queued_s = dict.fromkeys([str(self.child), *children[:1]], 0.0)
        for process, known in self._queued_s.items():
            # The second number of schedstat: nanoseconds spent waiting for a processor.
            told = (self._read(f"{process}/schedstat").split() or ["0", "0"])[1]
            self._queued_s[process] = max(known, int(told) / 1e9)
        return sum(self._queued_s.values())

    def _read(self, path: str) -> str:
        try:
            with open(os.open(path, os.O_RDONLY, dir_fd=self._proc)) as file:  # noqa: PTH123 (a descriptor)
                return file.read()
        except OSError:  # gone, or a kernel that keeps no such count: then time is time
            return ""
