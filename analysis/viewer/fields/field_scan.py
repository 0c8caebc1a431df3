"""Reads the values of fields from all rows of a file, in one pass in the background for all fields that are asked for.

The pass decodes a row once for all fields that have been read equally far, and stops when nobody asks for them.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollyard.analysis.metrics.loader.columns import Ints
from rollyard.analysis.viewer.fields.read_values import ReadValues
from rollyard.records.expressions.column import Column
from rollyard.records.expressions.field_path import FieldPath
from rollyard.records.expressions.parse import ExpressionError
from rollyard.records.io.jsonl import iter_jsonl, skip

_STEP = 4 << 20
"""Number of bytes between two checks whether the values are still requested."""
_PAUSE_AFTER_S = 10.0
"""Fields that have not been queried for this long are not read any further, until the next query."""
_MAX_FIELDS = 24


class _Step(NamedTuple):
    """The next lines to read, and for which fields."""

    start: int
    stop: int
    fields: list[ReadValues]


class FieldScan:
    """The values of fields in the rows of one file, including rows appended later. Thread-safe."""

    def __init__(self, path: Path, *, pause_after_s: float = _PAUSE_AFTER_S, step: int = _STEP) -> None:
        """The scan starts at the first call to `progress`."""
        self._path = path
        self._pause_after_s = pause_after_s
        self._step = step
        self._fields: OrderedDict[FieldPath, ReadValues] = OrderedDict()
        self._until = 0
        self._stopped = False
        self._running = False
        self._changed = threading.Condition()

    def progress(self, fields: Sequence[FieldPath], until: int, wait_s: float = 0.0) -> int:
        """Return the number of bytes that have been read for all of these fields. `until` is the number of bytes in
        complete lines.

        Waits for at most `wait_s`. Raises ExpressionError if the values are too large to be kept.
        """
        with self._changed:
            self._until = max(until, self._until)
            wanted = self._wanted(fields)
            if not self._running and not self._stopped and self._due():
                self._running = True
                threading.Thread(target=self._scan, name="fields", daemon=True).start()
            self._changed.wait_for(lambda: not self._running or _is_read(wanted, until), wait_s)
            if errors := [one.error for one in wanted if one.error]:
                raise ExpressionError(errors[0])
            return min(one.position for one in wanted)

    def column(self, field: FieldPath, offsets: Ints) -> tuple[Column, int]:
        """Return the field's values in the rows at these byte offsets, and up to which byte of the file they are
        complete. Values are missing for rows that have not been read.
        """
        with self._changed:
            found = self._fields.get(field) or ReadValues(field)
            position = found.position
        return found.column(offsets), position

    def stop(self) -> None:
        """Stop reading."""
        self._stopped = True

    def _wanted(self, fields: Sequence[FieldPath]) -> list[ReadValues]:
        for field in fields:
            self._fields.setdefault(field, ReadValues(field)).queried = time.monotonic()
            self._fields.move_to_end(field)
        while len(self._fields) > max(_MAX_FIELDS, len(fields)):
            self._fields.popitem(last=False)
        return [self._fields[field] for field in fields]

    def _due(self) -> list[ReadValues]:
        latest = time.monotonic() - self._pause_after_s
        return [
            one
            for one in self._fields.values()
            if one.position < self._until and not one.error and one.queried >= latest
        ]

    def _scan(self) -> None:
        ended = False
        try:
            while (step := self._next()) is not None:
                if not self._read(step):
                    break
            else:
                ended = True  # by `_next`; another thread may be reading now
        except OSError:
            pass
        finally:
            if not ended:
                self._end()

    def _end(self) -> None:
        with self._changed:
            self._running = False
            self._changed.notify_all()

    def _next(self) -> _Step | None:
        """Return the next lines of the fields that are behind the others, up to where those are. If there are none, end
        the pass under the lock, so that a query that comes now starts another thread.
        """
        with self._changed:
            due = [] if self._stopped else self._due()
            if not due:
                self._end()
                return None
            start = min(one.position for one in due)
            ahead = [one.position for one in due if one.position > start]
            return _Step(
                start, min(start + self._step, self._until, *ahead), [one for one in due if one.position == start]
            )

    def _read(self, step: _Step) -> bool:
        """Read the lines that begin in the step; return False if there is no complete line."""
        offsets = array("q")
        values: list[list[Any]] = [[] for _ in step.fields]
        readers = [(one.reader, kept.append) for one, kept in zip(step.fields, values, strict=True)]
        lines = list(_lines(self._path, step.start, step.stop))
        for line in iter_jsonl(lines, skip):  # the index reports invalid lines
            offsets.append(line.offset)
            for read, keep in readers:
                keep(read(line.value))
        end = sum(len(line) for _, line in lines) + step.start
        rows = np.array(offsets, np.int64)
        for one, kept in zip(step.fields, values, strict=True):
            one.add(rows, kept)
        with self._changed:
            for one in step.fields:
                one.position = max(one.position, end)
            self._changed.notify_all()
        return end > step.start


def _is_read(fields: Sequence[ReadValues], until: int) -> bool:
    return all(one.position >= until or one.error for one in fields)


def _lines(path: Path, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines that begin in [start, stop), each with its byte offset. A line begins at `start`."""
    with path.open("rb") as file:
        file.seek(start)
        block = file.read(stop - start)
        if not block.endswith(b"\n"):
            block += file.readline()
    offset = start
    for line in block.splitlines(keepends=True) if b"\r" not in block else _split(block):
        if line.endswith(b"\n"):
            yield offset, line
        offset += len(line)


def _split(block: bytes) -> Iterator[bytes]:
    """Split at `\\n` only, unlike `splitlines`."""
    start = 0
    while start < len(block):
        end = block.find(b"\n", start) + 1 or len(block)
        yield block[start:end]
        start = end
