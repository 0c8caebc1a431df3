"""The findings of a run, and the rollouts of each.

`FindingIndex` reads the signs of the rows in the background, once, and computes findings from them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response

from rollyard.analysis.findings.detector import Finding, Signs, joined
from rollyard.analysis.findings.find import (
    Found,
    find,
    no_signs,
    ranges_of,
    read_ranges,
    read_signs,
)
from rollyard.analysis.metrics.load import reading_pool
from rollyard.analysis.metrics.run_plan import read_failed_attempts
from rollyard.analysis.viewer.api_records import Page
from rollyard.analysis.viewer.caches import ThrottledCache
from rollyard.analysis.viewer.library import NICE, WORTH_PROCESSES, FileIndex
from rollyard.analysis.viewer.responses import json_response
from rollyard.analysis.viewer.rollout_list import MAX_LINES, Indexes, RolloutTable, page_start
from rollyard.analysis.viewer.run_file import RunFile
from rollyard.records.types import Record

_ALMOST = 0.999
_WAIT_S = 0.3


class FindingsView(Record):
    """GET /api/runs/{run}/findings: what stands out in the part of the file that has been examined."""

    findings: list[Finding]
    rollouts: int
    """Number of measured rollouts that were examined."""
    examined: float
    """Share of the file that has been examined. Below 1, the page asks again. It is not 1 either while the findings do
    not cover all that has been read."""
    error: str
    """Why the file cannot be examined any further; empty if it can."""


class FindingRollouts(Record):
    """GET /api/runs/{run}/findings/{kind}/rollouts."""

    finding: Finding
    page: Page


def finding_router(file_index: FileIndex, findings: FindingIndex) -> APIRouter:
    api = APIRouter(prefix="/api/runs/{run}/findings")

    @api.get("")
    async def all_findings(run: int) -> Response:
        return await json_response(lambda: findings_view(findings, run))

    @api.get("/{kind}/rollouts")
    async def rollouts(
        run: int,
        kind: str,
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_LINES)] = 100,
    ) -> Response:
        def page() -> FindingRollouts:
            found = findings.named(run, kind)
            listing = file_index.find(run).listing
            indexes = rows_of(listing.table, found)
            first = page_start(start, limit, len(indexes))
            shown = listing.page_of(indexes[first : first + limit], len(indexes), first)
            return FindingRollouts(finding=found.finding, page=shown)

        return await json_response(page)

    return api


def findings_view(findings: FindingIndex, run: int) -> FindingsView:
    examined, error = findings.progress(run)
    found = findings.found(run)
    return view_of(found, examined if found.is_latest else min(examined, _ALMOST), error)


def view_of(found: FoundSoFar, examined: float = 1.0, error: str = "") -> FindingsView:
    return FindingsView(
        findings=[one.finding for one in found.found], rollouts=found.rollouts, examined=examined, error=error
    )


@dataclass(frozen=True)
class FoundSoFar:
    found: list[Found]
    rollouts: int
    version: tuple[int, int]
    """Number of bytes that the findings cover, and number of failed attempts."""
    is_latest: bool = True
    """Whether they cover all that has been read. Findings are computed at a limited rate."""


@dataclass
class _Followed:
    """The signs of one file. `lock` is held while fields change."""

    generation: int = -1
    parts: list[Signs] = field(default_factory=list)
    """Signs of consecutive parts of the file."""
    reached: int = 0
    reader: threading.Thread | None = None
    error: str = ""
    latest: ThrottledCache[FoundSoFar] = field(default_factory=ThrottledCache)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_reading(self) -> bool:
        return self.reader is not None and self.reader.is_alive()


class FindingIndex:
    """Thread-safe. A file is read from its first request on, once, and again only where it has grown."""

    def __init__(self, find_run: Callable[[int], RunFile], *, workers: int = 1) -> None:
        self._find_run, self._workers = find_run, workers
        self._files: dict[int, _Followed] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def progress(self, number: int) -> tuple[float, str]:
        """Start or continue to read a run's file. Return the share that has been read, and why reading failed, or ''.

        Waits a moment, so that small files are complete in the first response. Raises UnknownRun.
        """
        run, followed = self._find_run(number), self._followed(number)
        with followed.lock:
            end = run.file.snapshot.end
            if followed.generation != run.file.generation:
                followed.generation, followed.parts, followed.reached = run.file.generation, [], 0
                followed.error, followed.latest = "", ThrottledCache()
            if followed.reached < end and not followed.is_reading and not self._closing.is_set():
                arguments = run, followed, followed.generation, end
                followed.reader = threading.Thread(target=self._read, args=arguments, name="findings", daemon=True)
                followed.reader.start()
            reader = followed.reader
        if reader is not None:
            reader.join(_WAIT_S)
        status = run.status_record()
        size = status.size - status.torn
        return (min(1.0, followed.reached / size) if size > 0 else 1.0), followed.error

    def found(self, number: int) -> FoundSoFar:
        run = self._find_run(number)
        followed = self._followed(number)
        with followed.lock:
            followed.parts = [joined([no_signs(), *followed.parts])]
            signs, cache = followed.parts[0], followed.latest
            version = followed.reached, len(run.attempts.failed.task)
        latest = cache.get(version, lambda: _found(run, signs, version[1]))
        return replace(latest, is_latest=latest.version == version)

    def named(self, number: int, kind: str) -> Found:
        """Return the finding of this kind. Raises UnknownRun, and HTTPException (404) if there is none."""
        self.progress(number)
        found = next((one for one in self.found(number).found if one.finding.kind == kind), None)
        if found is None:
            raise HTTPException(404, f"run {number} has no finding {kind[:80]!r} in the part examined so far")
        return found

    def close(self) -> None:
        self._closing.set()

    def _followed(self, number: int) -> _Followed:
        with self._lock:
            return self._files.setdefault(number, _Followed())

    def _read(self, run: RunFile, followed: _Followed, generation: int, end: int) -> None:
        ranges = ranges_of(followed.reached, end)
        is_large = self._workers > 1 and end - followed.reached >= WORTH_PROCESSES
        try:
            with reading_pool(self._workers, nice=NICE) if is_large else nullcontext() as pool:
                for span, signs in zip(ranges, read_ranges(run.path, ranges, pool), strict=True):
                    if not self._add(followed, generation, span[1], signs):
                        raise _Stopped
        except _Stopped:
            return
        except (OSError, BrokenProcessPool) as error:
            with followed.lock:
                followed.error = f"{run.path} cannot be read for findings: {error}"

    def _add(self, followed: _Followed, generation: int, reached: int, signs: Signs) -> bool:
        """Add the signs of the next part. Return whether to continue."""
        with followed.lock:
            if followed.generation != generation or self._closing.is_set():
                return False
            followed.parts.append(signs)
            followed.reached, followed.error = reached, ""
            return True


def examined_now(run: RunFile) -> FoundSoFar:
    """Examine the whole indexed part of a file in the calling thread. Raises OperatorError if it cannot be read."""
    return _found(run, read_signs(run.path, run.file.snapshot.end), len(run.attempts.failed.task))


def _found(run: RunFile, signs: Signs, attempts: int) -> FoundSoFar:
    profiled = run.numbers_before(signs.end)
    found = find(profiled, signs, read_failed_attempts(run.path))
    return FoundSoFar(found, len(profiled.columns), (signs.end, attempts))


class _Stopped(Exception):
    """The file changed or the viewer closes, so that the pool must end at once."""


def rows_of(table: RolloutTable, found: Found) -> Indexes:
    """Return the rows of the table that belong to a finding; attempts at the same rollout are one row."""
    tasks, repeats = found.task.astype(np.int64), found.repeat.astype(np.int64)
    known = np.stack([table.task, table.repeat], axis=1)
    wanted = np.unique(np.stack([tasks, repeats], axis=1), axis=0)
    pairs = np.dtype([("task", np.int64), ("repeat", np.int64)])
    return np.flatnonzero(
        np.isin(np.ascontiguousarray(known).view(pairs).ravel(), np.ascontiguousarray(wanted).view(pairs).ravel())
    )
