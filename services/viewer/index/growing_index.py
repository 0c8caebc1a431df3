"""Indexes a rollout file in steps, extends the index when the file grows and rebuilds it when the file changes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rollyard.services.metrics.loader.parallel_reader import PART, Part, has_task_index, read_parts
from rollyard.services.rollouts.store import StorePaths
from rollyard.services.viewer.index.file_fingerprint import FileFingerprint
from rollyard.services.viewer.index.index_file import save, saved
from rollyard.services.viewer.index.index_snapshot import Snapshot, empty, extended

WORTH_SAVING = 32 << 20
"""Minimum file size in bytes for saving the index; smaller files are read again in a few tenths of a second."""
POOLED_PARTS = 8
"""Parts that processes read before other files are checked."""
_REST = 5
"""After sorting, the index pauses for this many times the duration, so that a growing file of a million rows costs a
sixth of a core."""


class FollowedFile:
    """The index of a growing file. One thread calls `advance`; any thread may read `snapshot`."""

    def __init__(self, path: Path, *, worth_saving: int = WORTH_SAVING, part: int = PART) -> None:
        self.path = path
        self.snapshot: Snapshot = empty()
        self.size = 0
        """Size of the file at the last check."""
        self.error = ""
        """Why the file cannot be read."""
        self.through = False
        """Whether the file is read up to its size at the last check."""
        self.generation = 0
        """Incremented when the file was changed and is read again."""
        self._index = StorePaths(path).sidecar("index.npz")
        self._worth_saving = worth_saving
        self._part = part
        self._waiting: list[Part] = []
        """Parts that are read and not sorted yet."""
        self._mark: FileFingerprint | None = None
        self._saved = -1
        """Bytes that the saved index covers; -1 if it was not loaded yet."""
        self._rest_until = 0.0
        self._doubted = False

    @property
    def behind(self) -> int:
        """Bytes that are not read yet."""
        return 0 if self.through or self.error else self.size - self.reached

    @property
    def shown(self) -> bool:
        """Whether everything that was read is in `snapshot`."""
        return not self._waiting

    def advance(self, pool: ProcessPoolExecutor | None = None) -> bool:
        """Check the file and read a step of new data, in the processes of `pool`. Return whether it changed."""
        before = self.snapshot
        try:
            stat = self.path.stat()
            self.size = stat.st_size
            if self._saved < 0:
                self._restore(stat)
            elif self._doubted or (self._mark is not None and not self._mark.fits(self.path, stat)):
                self._forget()
            if self._mark is None or not self._mark.unchanged(stat):
                self._read(stat, pool)
            if self._waiting and self._worth_ordering():
                self._order()
            if self._worth_keeping():
                self._keep(stat)
            self.error = ""
        except OSError as error:
            self.error = f"{self.path} cannot be read: {error.strerror or error}."
        return self.snapshot is not before

    def doubt(self) -> None:
        """Rebuild the index in the next step, because a row has moved. Thread-safe."""
        self._doubted = True

    def _forget(self) -> None:
        """Discard everything, because the file was replaced."""
        self._doubted = False
        self.snapshot = empty()
        self.generation += 1
        self.through = False
        self._waiting.clear()
        self._mark = None
        self._saved = 0
        self._rest_until = 0.0

    def close(self) -> None:
        """Save the index if it has grown since it was saved."""
        end = self.snapshot.end
        if self._saved >= 0 and end > self._saved and end >= self._worth_saving and not self._waiting:
            self._keep(self.path.stat())

    @property
    def reached(self) -> int:
        """Number of bytes read."""
        return max([self.snapshot.end, *(part.stop for part in self._waiting)])

    def _restore(self, stat: os.stat_result) -> None:
        self._saved = 0
        found = saved(self._index) if self.size >= self._worth_saving else None
        if found is not None and found[1].fits(self.path, stat):
            self.snapshot, self._mark = found
            self._saved = self.snapshot.end
            self.through = self._mark.unchanged(stat)

    def _read(self, stat: os.stat_result, pool: ProcessPoolExecutor | None) -> None:
        ranges = list(self._next_ranges(POOLED_PARTS if pool else 1))
        named = self._says_task()
        parts = [] if named is None else [part for part in read_parts(self.path, ranges, named, pool) if part.stop]
        self._waiting += parts
        # A step without a complete line has reached an incomplete one that extends to the end of the file.
        self.through = not parts or ranges[-1][1] == self.size or self.reached >= self.size
        self._mark = FileFingerprint.of(self.path, self.reached, stat, whole=self.through)

    def _next_ranges(self, most: int) -> Iterator[tuple[int, int]]:
        start = self.reached
        while start < self.size and most > 0:
            stop = min(start + self._part, self.size)
            yield start, stop
            start, most = stop, most - 1

    def _says_task(self) -> bool | None:
        return self.snapshot.has_task_index if self.snapshot.end else has_task_index(self.path)

    def _worth_ordering(self) -> bool:
        if self.through:
            return time.monotonic() >= self._rest_until
        rows = sum(len(part.columns) + len(part.columns.unmeasured.task) for part in self._waiting)
        return 2 * rows >= len(self.snapshot.columns)

    def _order(self) -> None:
        started = time.monotonic()
        self.snapshot = extended(self.snapshot, self._waiting, has_task_index=self._says_task() is not False)
        self._waiting.clear()
        if self.through:
            self._rest_until = time.monotonic() + _REST * (time.monotonic() - started)

    def _worth_keeping(self) -> bool:
        """Return whether to save: during the first read after doubling, later after growing by an eighth."""
        new = self.snapshot.end - self._saved
        return new >= max(self._worth_saving, self._saved // 8 if self.through else self._saved) and not self._waiting

    def _keep(self, stat: os.stat_result) -> None:
        try:
            save(self._index, self.snapshot, FileFingerprint.of(self.path, self.snapshot.end, stat, whole=self.through))
            self._saved = self.snapshot.end
        except OSError:
            # Without write permission or disk space, the index stays in memory only.
            self._worth_saving = 1 << 62
