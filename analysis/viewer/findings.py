"""The findings of a file, which are computed from the signs of its rows, which are read in the background, once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fastapi import HTTPException

from rollyard.analysis.findings.detector import Finding, Signs, joined
from rollyard.analysis.findings.find import Found, find, no_signs, ranges_of, read_ranges, read_signs
from rollyard.analysis.metrics.load import reading_pool
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.run_plan import read_failed_attempts
from rollyard.analysis.viewer.caches import ThrottledCache
from rollyard.analysis.viewer.growing_index import NICE, WORTH_PROCESSES
from rollyard.analysis.viewer.rollout_list import Indexes, RolloutTable
from rollyard.records.types import Record

_ALMOST = 0.999
_WAIT_S = 0.3


class FindingsView(Record):
    """GET /api/runs/{run}/findings: what stands out in the part of the file that has been examined."""

    findings: list[Finding]
    rollouts: int
    examined: float
    """Share of the file that has been examined. Below 1, the page asks again. It is not 1 either while the findings do
    not cover all that has been read."""
    error: str
    """Why the file cannot be examined any further; empty if it can."""


@dataclass(frozen=True)
class FoundSoFar:
    found: list[Found]
    rollouts: int
    version: tuple[int, int]
    """Number of bytes that the findings cover, and number of failed attempts."""

    def view(self, examined: float = 1.0, error: str = "") -> FindingsView:
        findings = [one.finding for one in self.found]
        return FindingsView(findings=findings, rollouts=self.rollouts, examined=examined, error=error)


class ReadSoFar(NamedTuple):
    generation: int
    """Changes if the file was replaced."""
    end: int
    size: int
    """Number of bytes in complete lines."""
    attempts: int


class RunFindings:
    """Thread-safe. The file is read from the first request on, once, and again only where it has grown."""

    def __init__(
        self, path: Path, indexed: Callable[[], ReadSoFar], run_before: Callable[[int], Run], *, workers: int = 1
    ) -> None:
        """`run_before` returns the metrics of the first bytes of the file."""
        self._path, self._indexed, self._run_before, self._workers = path, indexed, run_before, workers
        self._generation = -1
        self._parts: list[Signs] = []
        self._reached = 0
        self._error = ""
        self._latest: ThrottledCache[FoundSoFar] = ThrottledCache()
        self._reader: threading.Thread | None = None
        self._lock = threading.Lock()
        """Held while the fields above change."""
        self._closed = False

    def view(self) -> FindingsView:
        """Return what has been found, and read on. Waits a moment, which is enough for a small file."""
        found, examined = self._examined()
        return found.view(examined, self._error)

    def named(self, kind: str) -> tuple[Found | None, float]:
        """Return the finding of this kind, and the share of the file that has been examined for it.

        It is None if there is none yet. Raises HTTPException (404) if there is none in the whole file.
        """
        so_far, examined = self._examined()
        found = next((one for one in so_far.found if one.finding.kind == kind), None)
        if found is None and examined == 1:
            raise HTTPException(404, f"this run has no finding {kind[:80]!r}")
        return found, examined

    def now(self) -> FoundSoFar:
        """Examine the whole indexed part in the calling thread. Raises OperatorError if it cannot be read."""
        now = self._indexed()
        return self._computed(read_signs(self._path, now.end), now.attempts)

    def close(self) -> None:
        self._closed = True

    def _examined(self) -> tuple[FoundSoFar, float]:
        now = self._indexed()
        with self._lock:
            if self._generation != now.generation:
                self._generation, self._parts, self._reached, self._error = now.generation, [], 0, ""
                self._latest = ThrottledCache()
            is_reading = self._reader is not None and self._reader.is_alive()
            if self._reached < now.end and not is_reading and not self._closed:
                self._reader = threading.Thread(target=self._read, args=(now,), name="findings", daemon=True)
                self._reader.start()
            reader = self._reader
        if reader is not None:
            reader.join(_WAIT_S)
        with self._lock:
            self._parts = [joined([no_signs(), *self._parts])]
            signs, cache, reached = self._parts[0], self._latest, self._reached
        found = cache.get((reached, now.attempts), lambda: self._computed(signs, now.attempts))
        examined = min(1.0, reached / now.size) if now.size > 0 else 1.0
        return found, examined if found.version == (reached, now.attempts) else min(examined, _ALMOST)

    def _computed(self, signs: Signs, attempts: int) -> FoundSoFar:
        run = self._run_before(signs.end)
        found = find(run, signs, read_failed_attempts(self._path))
        return FoundSoFar(found, len(run.columns), (signs.end, attempts))

    def _read(self, now: ReadSoFar) -> None:
        ranges = ranges_of(self._reached, now.end)
        is_large = self._workers > 1 and now.end - self._reached >= WORTH_PROCESSES
        try:
            with reading_pool(self._workers, nice=NICE) if is_large else nullcontext() as pool:
                for (_, reached), signs in zip(ranges, read_ranges(self._path, ranges, pool), strict=True):
                    with self._lock:
                        if self._generation != now.generation or self._closed:
                            raise _Stopped
                        self._parts.append(signs)
                        self._reached, self._error = reached, ""
        except _Stopped:
            return
        except (OSError, BrokenProcessPool) as error:
            with self._lock:
                self._error = f"{self._path} cannot be read for findings: {error}"


class _Stopped(Exception):
    """The file changed or the viewer closes, so that the pool must end at once."""


def rows_of(table: RolloutTable, found: Found) -> Indexes:
    """Return the rows of the table that belong to a finding; attempts at the same rollout are one row."""
    known = np.stack([table.task, table.repeat], axis=1)
    wanted = np.unique(np.stack([found.task.astype(np.int64), found.repeat.astype(np.int64)], axis=1), axis=0)
    pairs = np.dtype([("task", np.int64), ("repeat", np.int64)])
    return np.flatnonzero(np.isin(np.ascontiguousarray(known).view(pairs).ravel(), wanted.view(pairs).ravel()))
