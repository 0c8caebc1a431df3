"""The deadline of a jail, by a clock that a busy machine does not turn."""

from __future__ import annotations

import os
import time

MOST_DELAY = 10
"""So many times the deadline is the end also on a machine that has no time for the jail."""


class Clock:
    """Seconds since the start, less those in which the jail was ready to run and the machine gave it no processor."""

    def __init__(self, limit_s: float, proc: int, child: int) -> None:
        self.child = child
        self._begun = time.monotonic()
        self._limit_s = limit_s
        self._proc = proc

    def left(self) -> float:
        """Until the deadline; it never moves beyond a multiple of itself."""
        passed = time.monotonic() - self._begun
        left = self._limit_s - passed
        if left <= 0 and passed < MOST_DELAY * self._limit_s:
            left += sum(map(self._queued_s, [str(self.child), *self._children()]))
        return left

    def _children(self) -> list[str]:
        return self._read(f"{self.child}/task/{self.child}/children").split()

    def _queued_s(self, process: str) -> float:
        """The second number of schedstat: nanoseconds spent waiting for a processor."""
        return int((self._read(f"{process}/schedstat").split() or ["0", "0"])[1]) / 1e9

    def _read(self, path: str) -> str:
        try:
            with open(os.open(path, os.O_RDONLY, dir_fd=self._proc)) as file:  # noqa: PTH123 (a descriptor)
                return file.read()
        except OSError:  # gone, or a kernel that keeps no such count: then time is time
            return ""
