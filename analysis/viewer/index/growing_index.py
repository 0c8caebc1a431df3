"""Indexes a rollout file in steps, extends the index when the file grows and rebuilds it when the file changes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rollyard.analysis.metrics.loader.parallel_reader import PART, Part, has_task_index, read_parts
from rollyard.analysis.viewer.index.file_fingerprint import FileFingerprint
from rollyard.analysis.viewer.index.index_file import save, saved
from rollyard.analysis.viewer.index.index_snapshot import Snapshot, empty, extended
from rollyard.records.io.rollout_paths import RolloutPaths

WORTH_SAVING = 32 << 20
"""Minimum file size in bytes for saving the index. Smaller files can be read again in a few tenths of a second."""
POOLED_PARTS = 8
"""Number of parts to read in parallel before other files are checked."""
_PAUSE_FACTOR = 5
"""Pause after sorting, as a multiple of the time it took, so that a growing file uses at most a sixth of a core."""


class FollowedFile:
    """The index of a growing file. One thread calls `advance`; any thread may read `snapshot`."""

    def __init__(self, path: Path, *, worth_saving: int = WORTH_SAVING, part: int = PART) -> None:
        self.path = path
        self.snapshot: Snapshot = empty()
        self.size = 0
        """Size of the file at the last check."""
        self.error = ""
        """Why the file cannot be read; empty if it can."""
        self.at_end = False
        """Whether the file has been read up to its size at the last check."""
        self.generation = 0
        """Incremented when the file has changed and is read again."""
        self._index = RolloutPaths(path).sidecar("index.npz")
        self._worth_saving = worth_saving
        self._part = part
        self._unsorted: list[Part] = []
        """Parts that have been read but not sorted yet."""
        self._fingerprint: FileFingerprint | None = None
        self._saved = -1
        """Number of bytes that the saved index covers; -1 before the first attempt to load it."""
        self._paused_until = 0.0
        self._invalidated = False

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that have not been read yet."""
        return 0 if self.at_end or self.error else self.size - self.reached

    @property
    def is_sorted(self) -> bool:
        """Whether `snapshot` contains all data that has been read."""
        return not self._unsorted

    def advance(self, pool: ProcessPoolExecutor | None = None) -> bool:
        """Check the file and read the next step of new data, using the processes of `pool`. Return whether `snapshot`
        changed.
        """
        before = self.snapshot
        try:
            stat = self.path.stat()
            self.size = stat.st_size
            if self._saved < 0:
                self._restore(stat)
            elif self._invalidated or (self._fingerprint is not None and not self._fingerprint.fits(self.path, stat)):
                self._reset()
            if self._fingerprint is None or not self._fingerprint.unchanged(stat):
                self._read(stat, pool)
            if self._unsorted and self._should_sort():
                self._sort()
            if self._should_save():
                self._save(stat)
            self.error = ""
        except OSError as error:
            self.error = f"{self.path} cannot be read: {error.strerror or error}."
        return self.snapshot is not before

    def invalidate(self) -> None:
        """Request that the next step rebuild the index, because a row has moved. Thread-safe."""
        self._invalidated = True

    def hurry(self) -> None:
        """Let the next step sort what has been read, however recently it was sorted before."""
        self._paused_until = 0.0

    def _reset(self) -> None:
        """Discard everything that was read, because the file was replaced."""
        self._invalidated = False
        self.snapshot = empty()
        self.generation += 1
        self.at_end = False
        self._unsorted.clear()
        self._fingerprint = None
        self._saved = 0
        self._paused_until = 0.0

    def close(self) -> None:
        """Save the index if it has grown since it was last saved."""
        end = self.snapshot.end
        if self._saved >= 0 and end > self._saved and end >= self._worth_saving and not self._unsorted:
            self._save(self.path.stat())

    @property
    def reached(self) -> int:
        """Number of bytes read so far."""
        return max([self.snapshot.end, *(part.stop for part in self._unsorted)])

    def _restore(self, stat: os.stat_result) -> None:
        self._saved = 0
        found = saved(self._index) if self.size >= self._worth_saving else None
        if found is not None and found[1].fits(self.path, stat):
            self.snapshot, self._fingerprint = found
            self._saved = self.snapshot.end
            self.at_end = self._fingerprint.unchanged(stat)

    def _read(self, stat: os.stat_result, pool: ProcessPoolExecutor | None) -> None:
        ranges = list(self._next_ranges(POOLED_PARTS if pool else 1))
        indexed = self._has_task_index()
        parts = [] if indexed is None else [part for part in read_parts(self.path, ranges, indexed, pool) if part.stop]
        self._unsorted += parts
        # If a step contains no complete line, the rest of the file is one incomplete line.
        self.at_end = not parts or ranges[-1][1] == self.size or self.reached >= self.size
        self._fingerprint = FileFingerprint.of(self.path, self.reached, stat, complete=self.at_end)

    def _next_ranges(self, most: int) -> Iterator[tuple[int, int]]:
        start = self.reached
        while start < self.size and most > 0:
            stop = min(start + self._part, self.size)
            yield start, stop
            start, most = stop, most - 1

    def _has_task_index(self) -> bool | None:
        return self.snapshot.has_task_index if self.snapshot.end else has_task_index(self.path)

    def _should_sort(self) -> bool:
        if self.at_end:
            return time.monotonic() >= self._paused_until
        rows = sum(len(part.columns) + len(part.columns.unmeasured.task) for part in self._unsorted)
        return 2 * rows >= len(self.snapshot.columns)

    def _sort(self) -> None:
        started = time.monotonic()
        self.snapshot = extended(self.snapshot, self._unsorted, has_task_index=self._has_task_index() is not False)
        self._unsorted.clear()
        if self.at_end:
            self._paused_until = time.monotonic() + _PAUSE_FACTOR * (time.monotonic() - started)

    def _should_save(self) -> bool:
        """Return whether to save the index. During the first read, it is saved when its size has doubled; later, when
        it has grown by an eighth.
        """
        new = self.snapshot.end - self._saved
        return new >= max(self._worth_saving, self._saved // 8 if self.at_end else self._saved) and not self._unsorted

    def _save(self, stat: os.stat_result) -> None:
        try:
            save(
                self._index, self.snapshot, FileFingerprint.of(self.path, self.snapshot.end, stat, complete=self.at_end)
            )
            self._saved = self.snapshot.end
        except OSError:
            # Without write permission or disk space, the index stays in memory only.
            self._worth_saving = 1 << 62
