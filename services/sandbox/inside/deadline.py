"""Measures the deadline of a jail, excluding time spent waiting for a busy CPU."""

from __future__ import annotations

import os
import time

MAX_EXTENSION = 10
"""Upper bound on the extended deadline, as a multiple of the limit, in case the host never schedules the jail."""
_SAMPLES = 20
"""How often waiting is measured within the limit, because threads and children that exit take their counts along."""


class DeadlineClock:
    """Measures the seconds since the start, excluding time in which the jail was runnable but had no CPU."""

    def __init__(self, limit_s: float, proc: int, child: int) -> None:
        self.child = child
        self._started_at = time.monotonic()
        self._measured_s = 0.0
        """Seconds between the start and the last measurement."""
        self._limit_s = limit_s
        self._sample_s = limit_s / _SAMPLES
        self._proc = proc
        self._answer = ""
        """Process id of the answer, which is the first child of the tests' process."""
        self._queued_s: dict[str, float] = {}
        """Thread -> seconds spent waiting for a CPU when it was last measured."""
        self._waited_s = 0.0

    def left(self) -> float:
        """Return the seconds left. Extensions move the deadline to at most `MAX_EXTENSION` times the limit."""
        elapsed = time.monotonic() - self._started_at
        if elapsed - self._measured_s >= self._sample_s or elapsed >= self._limit_s + self._waited_s:
            self._measure(elapsed)
        return min(self._limit_s + self._waited_s, MAX_EXTENSION * self._limit_s) - elapsed

    def wait_s(self) -> float:
        """Return how long to wait before `left` is called again."""
        return min(max(self.left(), 0.01), max(self._sample_s, 0.01))

    def _measure(self, elapsed: float) -> None:
        """Add the time since the last measurement in which the tests or the answer waited for a CPU.

        Of several threads and processes of the answer, the one that waited longest counts: they wait at the same time,
        and an answer must not gain time by starting more of them than there are CPUs.
        """
        if not self._answer:
            # Orphans of the answer become further children of the tests' process, whose waiting must not count.
            self._answer = self._read(f"{self.child}/task/{self.child}/children").partition(" ")[0]
        waited = self._grown(str(self.child))
        if self._answer:
            waited += max(map(self._grown, self._tree(self._answer)))
        self._waited_s += min(waited, elapsed - self._measured_s)
        self._measured_s = elapsed

    def _tree(self, process: str) -> list[str]:
        found = [process]
        for parent in found:
            for thread in self._threads(parent):
                found += self._read(f"{parent}/task/{thread}/children").split()
        return found

    def _grown(self, process: str) -> float:
        """Return by how many seconds the waiting of the process's slowest thread has grown."""
        grown = 0.0
        others = [f"{process}/task/{thread}" for thread in self._threads(process) if thread != process]
        for thread in (process, *others):
            # The second number of schedstat: nanoseconds that the thread, here the main one, waited for a processor.
            if stated := self._read(f"{thread}/schedstat").split():
                queued_s = int(stated[1]) / 1e9
                grown = max(grown, queued_s - self._queued_s.get(thread, 0.0))
                self._queued_s[thread] = queued_s
        return grown

    def _threads(self, process: str) -> list[str]:
        try:
            opened = os.open(f"{process}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        except OSError:  # exited
            return []
        try:
            return os.listdir(opened)  # noqa: PTH208 (a descriptor)
        except OSError:
            return []
        finally:
            os.close(opened)

    def _read(self, path: str) -> str:
        try:
            with open(os.open(path, os.O_RDONLY, dir_fd=self._proc)) as file:  # noqa: PTH123 (a descriptor)
                return file.read()
        except OSError:  # exited, or the kernel has no such count: use plain wall time
            return ""
