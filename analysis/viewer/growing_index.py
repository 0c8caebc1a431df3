"""Indexes a rollout file in steps, extends the index when the file grows and rebuilds it when the file changes.

A `Snapshot` is what has been indexed so far; any thread may read it. That of a large file is saved as `X_index.npz`
beside `X.jsonl`, which is safe to delete. A `FileFingerprint` tells whether the file grew or was changed. `AttemptFile`
indexes the failed attempts in `X_failures.jsonl`, and saves nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from rollyard.analysis.metrics.columns import (
    CATEGORIES,
    FLOATS,
    INTS,
    LOST_CATEGORIES,
    LOST_FLOATS,
    LOST_INTS,
    CategoryColumn,
    Columns,
    Floats,
    Ints,
    RolloutParser,
    Unmeasured,
    Vocabulary,
    chosen,
    merged,
    numbered_in_file_order,
)
from rollyard.analysis.metrics.load import PART, FilePart, has_task_index, read_parts
from rollyard.analysis.viewer.api_records import Attempt
from rollyard.analysis.viewer.untrusted_values import as_row
from rollyard.records.jsonl import Lines, iter_jsonl, line_at, skip
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Json, mapping, number, text_of, whole_number

WORTH_SAVING = 32 << 20
"""Minimum file size in bytes for saving the index. Smaller files can be read again in a few tenths of a second."""
POOLED_PARTS = 8
"""Number of parts to read in parallel before other files are checked."""
NICE = 5
"""Niceness of reader processes, which must have a lower priority than requests."""
WORTH_PROCESSES = 256 << 20
"""Minimum number of unread bytes at which starting several processes is worth the time."""
_PAUSE_FACTOR = 5
"""Pause after sorting, as a multiple of the time it took, so that a growing file uses at most a sixth of a core."""
FORMAT = 7
"""Format version, incremented when the contents or their meaning change. Files in older formats are ignored."""
_BLOCK = 4096
_BLOCKS = 64


class FollowedFile:
    """The index of a growing file. One thread calls `advance`; any thread may read `snapshot`."""

    def __init__(self, path: Path, *, worth_saving: int = WORTH_SAVING, part: int = PART) -> None:
        self.path = path
        self.snapshot: Snapshot = empty()
        self.size = 0
        self.error = ""
        self.at_end = False
        """Whether the file has been read up to its size at the last check."""
        self.generation = 0
        """Incremented when the file has changed and is read again."""
        self._index = RolloutPaths(path).sidecar("index.npz")
        self._worth_saving = worth_saving
        self._part = part
        self._unsorted: list[FilePart] = []
        self._fingerprint: FileFingerprint | None = None
        self._saved = -1
        """Number of bytes that the saved index covers; -1 before the first attempt to load it."""
        self._paused_until = 0.0
        self._invalidated = False

    @property
    def unread_bytes(self) -> int:
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


@dataclass(frozen=True)
class Snapshot:
    """The rollouts in the first `end` bytes of the file, without duplicates."""

    columns: Columns
    """Sorted by (task, repeat)."""
    end: int = 0
    has_task_index: bool = True
    """Whether rows have a task index. If not, each row counts as a task, and tasks are numbered in file order."""
    bad_lines: int = 0
    bad: tuple[int, str] | None = None
    """The byte offset of the first invalid line, and the reason."""
    duplicates: int = 0
    """Number of rows that are excluded because their rollout already occurs earlier in the file."""

    @property
    def error(self) -> str:
        problems = []
        if self.bad is not None:
            count = "1 line is" if self.bad_lines == 1 else f"{self.bad_lines} lines are"
            offset, why = self.bad
            problems.append(f"{count} not a valid rollout and excluded; the first (at byte {offset}){why}.")
        if self.duplicates:
            rows = "1 row is a duplicate" if self.duplicates == 1 else f"{self.duplicates} rows are duplicates"
            problems.append(f"{rows} and excluded; the first row of a rollout counts.")
        return " ".join(problems)


def empty() -> Snapshot:
    return Snapshot(RolloutParser().columns())


def extended(snapshot: Snapshot, parts: Sequence[FilePart], *, has_task_index: bool) -> Snapshot:
    """Return the snapshot extended by `parts`, which must directly follow it in the file."""
    columns = merged([snapshot.columns, *(part.columns for part in parts)])
    duplicates = 0
    if has_task_index:
        repeats = (np.diff(columns.task, prepend=-1) == 0) & (np.diff(columns.repeat, prepend=-1) == 0)
        if duplicates := int(repeats.sum()):
            columns = chosen(columns, ~repeats)
    else:
        columns = numbered_in_file_order(columns)
    return Snapshot(
        columns,
        end=max([snapshot.end, *(part.stop for part in parts)]),
        has_task_index=has_task_index,
        bad_lines=snapshot.bad_lines + sum(part.bad_lines for part in parts),
        bad=snapshot.bad or next((part.bad for part in parts if part.bad), None),
        duplicates=snapshot.duplicates + duplicates,
    )


def save(path: Path, snapshot: Snapshot, fingerprint: FileFingerprint) -> None:
    columns, lost = snapshot.columns, snapshot.columns.unmeasured
    arrays: dict[str, Any] = {name: getattr(columns, name) for name in (*INTS, *FLOATS)}
    arrays |= {name: getattr(columns, name).codes for name in CATEGORIES}
    arrays |= {f"stage{number}": seconds for number, seconds in enumerate(columns.stages.values())}
    arrays |= {f"lost_{name}": getattr(lost, name) for name in (*LOST_INTS, *LOST_FLOATS)}
    arrays |= {f"lost_{name}": getattr(lost, name).codes for name in LOST_CATEGORIES}
    header = {
        "format": FORMAT,
        "fingerprint": [fingerprint.end, fingerprint.size, fingerprint.mtime_ns, fingerprint.digest],
        "has_task_index": snapshot.has_task_index,
        "bad_lines": snapshot.bad_lines,
        "bad": snapshot.bad,
        "duplicates": snapshot.duplicates,
        "stages": list(columns.stages),
        "categories": {name: getattr(columns, name).names for name in CATEGORIES},
        "lost_categories": {name: getattr(lost, name).names for name in LOST_CATEGORIES},
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.savez(file, header=np.frombuffer(orjson.dumps(header), np.uint8), **arrays)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def saved(path: Path) -> tuple[Snapshot, FileFingerprint] | None:
    """Load the saved index; return None if it is missing or invalid."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _restored(arrays)
    # numpy may raise any exception for an invalid file. The index is then rebuilt.
    except Exception:
        return None


def _restored(arrays: Any) -> tuple[Snapshot, FileFingerprint] | None:
    header = orjson.loads(arrays["header"].tobytes())
    if header["format"] != FORMAT:
        return None

    def columns(ints: Sequence[str], floats: Sequence[str], categories: Sequence[str], prefix: str = "") -> Any:
        found = {name: _column(arrays[prefix + name], np.int64) for name in ints}
        found |= {name: _column(arrays[prefix + name], np.float64) for name in floats}
        names = header[f"{prefix}categories"]
        return found | {name: _category_column(arrays[prefix + name], names[name]) for name in categories}

    measured, lost = columns(INTS, FLOATS, CATEGORIES), columns(LOST_INTS, LOST_FLOATS, LOST_CATEGORIES, "lost_")
    stages = {str(name): _column(arrays[f"stage{number}"], np.float64) for number, name in enumerate(header["stages"])}
    for group in ([*measured.values(), *stages.values()], lost.values()):
        if len({len(one.codes if isinstance(one, CategoryColumn) else one) for one in group}) > 1:
            raise ValueError("columns have different lengths")
    end, size, mtime_ns, digest = header["fingerprint"]
    bad = None if header["bad"] is None else (int(header["bad"][0]), str(header["bad"][1]))
    snapshot = Snapshot(
        Columns(**measured, stages=stages, unmeasured=Unmeasured(**lost)),
        end=int(end),
        has_task_index=bool(header["has_task_index"]),
        bad_lines=int(header["bad_lines"]),
        bad=bad,
        duplicates=int(header["duplicates"]),
    )
    return snapshot, FileFingerprint(int(end), int(size), int(mtime_ns), str(digest))


def _column(array: Any, kind: Any) -> Any:
    if array.dtype != kind or array.ndim != 1:
        raise ValueError(f"expected a one-dimensional {kind.__name__} column")
    return array


def _category_column(codes: Any, names: Any) -> CategoryColumn:
    if _column(codes, np.int32).size and not -1 <= codes.min() <= codes.max() < len(names):
        raise ValueError("a category code has no name")
    return CategoryColumn(codes, tuple(map(str, names)))


@dataclass(frozen=True)
class FileFingerprint:
    """A fingerprint of a file that was read up to byte `end`."""

    end: int
    size: int
    mtime_ns: int
    digest: str
    """Digest of the first and last bytes before `end`, and of samples between them."""

    @classmethod
    def of(cls, path: Path, end: int, stat: os.stat_result, *, complete: bool) -> FileFingerprint:
        """Fingerprint the file at `path`. Raises OSError if it cannot be read.

        `stat` must be from before the file was read; `complete` states whether it was read to the end.
        """
        size, written = (stat.st_size, stat.st_mtime_ns) if complete else (-1, -1)
        return cls(end, size, written, _digest(path, end))

    def unchanged(self, stat: os.stat_result) -> bool:
        """Return whether the file was read to its end and has not been written to since."""
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)

    def fits(self, path: Path, stat: os.stat_result) -> bool:
        """Return whether the bytes before `end` are unchanged. Raises OSError if the file cannot be read.

        A file that was written to without growing counts as changed, because lines are only ever appended.
        """
        if self.unchanged(stat):
            return True
        if stat.st_size < self.end or stat.st_size == self.size == self.end:
            return False
        return _digest(path, self.end) == self.digest


def _digest(path: Path, end: int) -> str:
    found = hashlib.blake2b(digest_size=16)
    last = max(end - _BLOCK, 0)
    with path.open("rb", buffering=0) as file:
        for number in range(_BLOCKS):
            start = last * number // (_BLOCKS - 1)
            found.update(os.pread(file.fileno(), min(_BLOCK, end - start), start))
    return found.hexdigest()


_STEP = 16 << 20


@dataclass(frozen=True)
class Failed:
    """Failed attempts in chronological order."""

    task: Ints
    repeat: Ints
    offset: Ints
    terminal: NDArray[np.bool_]
    """Whether a failure of this kind is never retried by the same command."""
    abandoned_at: Floats
    """When the command gave up the rollout after this attempt; NaN if it did not, or if it is not recorded."""
    kind: CategoryColumn
    agent: CategoryColumn

    def offsets(self, task: int, repeat: int) -> list[int]:
        found: list[int] = self.offset[(self.task == task) & (self.repeat == repeat)].tolist()
        return found

    def take(self, rows: Any) -> Failed:
        """Return the attempts that an index or a mask of numpy selects."""
        kind, agent = (CategoryColumn(column.codes[rows], column.names) for column in (self.kind, self.agent))
        numbers = self.task[rows], self.repeat[rows], self.offset[rows]
        return Failed(*numbers, self.terminal[rows], self.abandoned_at[rows], kind, agent)


class AttemptFile:
    """The index of a failures file. One thread calls `advance`; any thread may read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fingerprint: FileFingerprint | None = None
        self._reset()

    @property
    def unread_bytes(self) -> int:
        return 0 if self._at_end else self._size - self._end

    def advance(self) -> bool:
        """Read up to 16 MB of new data; return whether attempts were added or removed."""
        try:
            stat = self.path.stat()
            if self._fingerprint is not None and self._fingerprint.unchanged(stat):
                return False
            changed = self._fingerprint is not None and not self._fingerprint.fits(self.path, stat)
            if changed:
                self._reset()
            before = self._end
            self._read()
            # A step that reads less than _STEP has reached the end of the file or an incomplete last line.
            self._size, self._at_end = stat.st_size, self._end < before + _STEP
            self._fingerprint = FileFingerprint.of(self.path, self._end, stat, complete=self._at_end)
        except OSError:
            changed = self._end > 0
            self._reset()
            return changed
        if changed or self._end > before:
            self.failed = self._collected_attempts()
            return True
        return False

    def of(self, task: int, repeat: int) -> list[Attempt]:
        """Return the failed attempts at a rollout, in order. Raises OSError if the file cannot be read."""
        return [attempt_of(self.row(offset)) for offset in self.failed.offsets(task, repeat)]

    def row(self, offset: int) -> Json:
        """Return the row at an offset; empty if it is no object, because the file was changed."""
        return as_row(line_at(self.path, offset)) or {}

    def _reset(self) -> None:
        self._ints = array("q")
        self._terminal = array("b")
        self._abandoned_at = array("d")
        self._kinds, self._agents = Vocabulary(), Vocabulary()
        self._end = 0
        self._size = 0
        self._at_end = True
        self._fingerprint = None
        self.failed = self._collected_attempts()

    def _collected_attempts(self) -> Failed:
        task, repeat, offset = np.array(self._ints, np.int64).reshape(-1, 3).T.copy()
        terminal = np.array(self._terminal, bool)
        abandoned_at = np.array(self._abandoned_at, np.float64)
        return Failed(task, repeat, offset, terminal, abandoned_at, self._kinds.column(), self._agents.column())

    def _read(self) -> None:
        lines = Lines(self.path, self._end, self._end + _STEP, whole=True)
        for line in iter_jsonl(lines, skip):
            self._add(line.value, line.offset)
        self._end = max(self._end, lines.end)

    def _add(self, row: Json, offset: int) -> None:
        task, repeat = whole_number(row.get("_ng_task_index")), whole_number(row.get("_ng_rollout_index"))
        if task is None or repeat is None:
            return
        self._ints.extend((task, repeat, offset))
        self._terminal.append(row.get("terminal") is not False)
        self._abandoned_at.append(number(row.get("time"), 0.0) if row.get("abandoned") is True else math.nan)
        self._kinds.add(row.get("failure_kind"))
        self._agents.add(mapping(row.get("agent_ref")).get("name"))


def attempt_of(row: Json) -> Attempt:
    return Attempt(
        attempt=whole_number(row.get("_ng_attempt_index")) or 0,
        kind=text_of(row.get("failure_kind")) or "unknown",
        server=text_of(row.get("server")),
        detail=text_of(row.get("detail")),
        seconds=number(row.get("duration_s"), 0.0),
        when=number(row.get("time"), 0.0),
        has_conversation=bool(mapping(mapping(row.get("partial")).get("row"))),
    )
