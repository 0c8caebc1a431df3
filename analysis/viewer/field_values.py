"""The values of fields in all rows of a file, for the expressions and the sort key of the list.

`Selections` evaluates them over the rollouts of the list. `FieldColumns` keeps the values as columns, `FieldScan` reads
them in the background: one pass decodes a row once for all fields that were asked for, and stops when nobody asks any
more. `ReadValues` stores what it has read of one field.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from rollyard.analysis.metrics.columns import COMPUTED, Columns, Ints, computed_column
from rollyard.analysis.metrics.selection import bounded, mask_of, note_fields, stored_fields
from rollyard.analysis.viewer.caches import Identity, PacedCache
from rollyard.analysis.viewer.run_notes import RunNotes
from rollyard.analysis.viewer.untrusted_values import sanitize
from rollyard.records.expression_parser import ExpressionError, FieldPath, parse, parse_field
from rollyard.records.expressions import Column, Kind, Mask, column_of
from rollyard.records.jsonl import iter_jsonl, skip
from rollyard.records.note_records import is_note_field, note_columns
from rollyard.records.tokens import reader_of

_MAX_SELECTIONS = 6
"""Each takes 9 MB for a million rollouts."""
_MAX_COLUMNS = 24
_WAIT_S = 0.25
"""How long a request waits for the values, which is enough for most files."""
_STEP = 4 << 20
"""Number of bytes between two checks whether the values are still requested."""
_PAUSE_AFTER_S = 10.0
"""Fields that have not been queried for this long are not read any further, until the next query."""
_MAX_FIELDS = 24
MAX_BYTES = 256 << 20
"""Maximum size of a field's texts, lists and objects in memory."""
_SHORT = 100
"""Strings of at most this many characters are stored once."""
_OBJECT_BYTES = 57
"""Memory that a string takes in addition to its characters."""
_PLAIN = {int, float, bool, type(None)}


@dataclass(frozen=True)
class Selection:
    """What an expression and a sort key mean for the rollouts of a table."""

    mask: Mask | None = None
    """Which rollouts meet the expression; None if there is no expression. Unmeasured rollouts never do."""
    ranks: NDArray[np.float64] | None = None
    """Values to sort by, NaN where missing; None if the sort key is a column of the table."""
    searched: float = 1.0
    """Share of the file that has been read for it."""
    version: str = ""
    """Differs between selections whose expression or sort key is the same, but for which more has been read, or
    other notes have been written."""


class Selections:
    """Evaluates expressions and sort keys of one file; keeps the latest results. Thread-safe."""

    def __init__(self, fields: FieldColumns) -> None:
        self._fields = fields
        self._kept = PacedCache[Selection](_MAX_SELECTIONS)

    def of(self, columns: Columns, measured: Mask, until: int, where: str, sort: str) -> Selection:
        """Return the selection. `measured`: which rollouts of the table are those of `columns`, in the same order.

        Raises ExpressionError if `where` or `sort` is invalid.
        """
        if not where and not sort:
            return Selection()
        wanted = [*stored_fields(parse(where)), *note_fields(parse(where))] if where else []
        if sort and (field := parse_field(sort)).column not in COMPUTED and field not in wanted:
            wanted.append(field)
        found = self._fields.read(wanted, until, columns.offset)  # one pass for both
        chosen = self._kept.get(
            (where, sort, Identity(columns), Identity(measured)),
            (found.covered, found.notes),
            lambda: _selection(columns, measured, where, sort, found),
            final=found.covered >= until,
        )
        return replace(chosen, searched=found.share(until))

    def clear(self) -> None:
        """Forget the results, because the file was changed or is being closed."""
        self._kept.clear()


def column_named(fields: FieldColumns, columns: Columns, until: int, name: str) -> tuple[Column, FieldValues]:
    """Return the values of a field over the measured rollouts, and how much of the file has been read for them.

    Raises ExpressionError if `name` is not a field.
    """
    field = parse_field(name)
    if field.column in COMPUTED:
        return computed_column(columns, field.column), FieldValues({}, until, until)
    found = fields.read([field], until, columns.offset)
    return found.columns[field], found


def _selection(columns: Columns, measured: Mask, where: str, sort: str, found: FieldValues) -> Selection:
    mask, ranks, places = None, None, np.flatnonzero(measured)
    if where:
        mask = np.zeros(len(measured), bool)
        mask[places] = mask_of(columns, parse(where), found.columns) & (columns.offset < found.covered)
    if sort:
        ranks = np.full(len(measured), np.nan)
        ranks[places] = _ranks(_values(columns, parse_field(sort), found))
    return Selection(mask, ranks, version=f"{found.covered} {found.notes}")


def _values(columns: Columns, field: FieldPath, found: FieldValues) -> Column:
    return computed_column(columns, field.column) if field.column in COMPUTED else found.columns[field]


def _ranks(column: Column) -> NDArray[np.float64]:
    """Return numbers in the order of the values. Numbers precede texts, and texts are in alphabetical order."""
    if column.numeric:
        return column.values
    keys = [
        None if value is None else (0, value, "") if isinstance(value, int | float) else (1, 0, str(value))
        for value in column.values
    ]
    places = {key: place for place, key in enumerate(sorted({key for key in keys if key is not None}))}
    return np.array([np.nan if key is None else places[key] for key in keys], np.float64)


class FieldValues(NamedTuple):
    """The values of some fields, as far as the file has been read."""

    columns: Mapping[FieldPath, Column]
    covered: int
    """Up to which byte of the file the columns are complete."""
    read: int
    """Number of bytes that have been read; columns are updated less often, and when everything has been read."""
    notes: str = ""
    """The version of the notes from which columns were computed."""

    def share(self, until: int) -> float:
        """Return the share that has been read of the first `until` bytes. It is 1 only if the columns are complete."""
        return 1.0 if self.covered >= until else min(self.read / until, 0.999)


class FieldColumns:
    """Thread-safe."""

    def __init__(self, path: Path, notes: RunNotes) -> None:
        self._path = path
        self._notes = notes
        self._scan = FieldScan(path)
        self._columns = PacedCache[tuple[Column, int]](_MAX_COLUMNS)
        self._noted = PacedCache[Column](_MAX_COLUMNS)

    def read(self, fields: Sequence[FieldPath], until: int, offsets: Ints) -> FieldValues:
        """Return the fields' values in the rows at `offsets`.

        `until` is the number of bytes in complete lines. Raises ExpressionError if values are too large to be kept.
        """
        noted = [field for field in fields if is_note_field(field)]
        if noted:
            rest = self.read([field for field in fields if field not in noted], until, offsets)
            return self._with_notes(rest, noted, offsets)
        if not fields:
            return FieldValues({}, until, until)
        scan = self._scan
        position = scan.progress(fields, until, _WAIT_S)
        found = {
            field: self._columns.get(
                (field, Identity(offsets)),
                position,
                lambda field=field: scan.column(field, offsets),  # type: ignore[misc]
                final=position >= until,
            )
            for field in fields
        }
        covered = min(end for _, end in found.values())
        return FieldValues({field: column for field, (column, _) in found.items()}, covered, position)

    def _with_notes(self, rest: FieldValues, fields: Sequence[FieldPath], offsets: Ints) -> FieldValues:
        placed = self._notes.current()
        found = {
            field: self._noted.get(
                (field, Identity(offsets)),
                placed.version,
                lambda field=field: note_columns([field], placed.by_offset, offsets.tolist())[field],  # type: ignore[misc]
                final=True,
            )
            for field in fields
        }
        return rest._replace(columns={**rest.columns, **found}, notes=placed.version)

    def forget(self) -> None:
        """Forget the columns, because they belong to an older list of rollouts. What has been read stays."""
        self._columns.clear()
        self._noted.clear()

    def stop(self) -> None:
        """Stop reading and forget the values, because the file was changed or is being closed."""
        self._scan.stop()
        self._scan = FieldScan(self._path)
        self.forget()


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


class ReadValues:
    """The values of one field, as far as they have been read. One thread calls `add`; `_parts` only ever grows."""

    def __init__(self, field: FieldPath) -> None:
        self.field = field
        self.reader = reader_of(field)
        self.position = 0
        """Number of bytes of the file that have been read for this field."""
        self.error = ""
        """Why the values are not kept; empty if they are."""
        self.queried = 0.0
        """When the values were last asked for."""
        self._parts: list[tuple[Ints, Column | None]] = []
        """The offsets of rows, and their values; None if all of them are missing."""
        self._strings: dict[str, str] = {}
        self._bytes = 0

    def add(self, offsets: Ints, values: list[Any]) -> None:
        """Add the values of the next rows, which begin at `offsets`."""
        types = set(map(type, values))
        if types <= _PLAIN:
            kept = None if types <= {type(None)} else column_of(values)
        else:
            kept = column_of([self._kept(value) for value in values])
        self._parts.append((offsets, kept))
        if self._bytes > MAX_BYTES:
            self._parts.clear()
            self.error = (
                f"the values of {self.field} take more than {MAX_BYTES >> 20} MB; expected a field with short values. "
                "Name a part of it, such as a key of the object, or use len(...) in ng_reward_profile --where"
            )

    def column(self, offsets: Ints) -> Column:
        """Return the values in the rows at these byte offsets; missing for rows that have not been read."""
        parts = self._parts[:]
        if not parts:
            return column_of([None] * len(offsets))
        known, values = np.concatenate([each for each, _ in parts]), _joined(parts)
        indexes = np.minimum(np.searchsorted(known, offsets), max(len(known) - 1, 0))
        if not len(known):
            return column_of([None] * len(offsets))
        taken, absent = values.values[indexes], known[indexes] != offsets
        taken[absent] = np.nan if values.numeric else None
        return Column(values.kind, taken)

    def _kept(self, value: Any) -> Any:
        if isinstance(value, str):
            if len(value) <= _SHORT:
                known = self._strings.get(value)
                if known is not None:
                    return known
                self._strings[value] = value
            value = bounded(value)
            self._bytes += len(value) + _OBJECT_BYTES
        elif isinstance(value, list | dict):
            self._bytes += len(orjson.dumps(sanitize(value), option=orjson.OPT_NON_STR_KEYS))
        return value


def _joined(parts: list[tuple[Ints, Column | None]]) -> Column:
    kinds = {column.kind for _, column in parts if column is not None}
    if len(kinds) == 1 and kinds <= {Kind.NUMBERS, Kind.TRUTHS}:
        values = [np.full(len(offsets), np.nan) if column is None else column.values for offsets, column in parts]
        return Column(kinds.pop(), np.concatenate(values))
    return Column(Kind.OBJECTS, np.concatenate([_objects(len(offsets), column) for offsets, column in parts]))


def _objects(count: int, column: Column | None) -> Any:
    """Return the values as an array of objects; whole numbers as int, as they are in columns without numbers."""
    if column is not None and not column.numeric:
        return column.values
    objects = np.full(count, None, object)
    for index, value in enumerate([] if column is None else column.objects()):
        objects[index] = int(value) if type(value) is float and value.is_integer() else value
    return objects
