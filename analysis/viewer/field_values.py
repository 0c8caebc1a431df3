"""The values of fields in all rows of a file, for the expressions and the sort key of the list.

`FieldColumns` answers; `FieldScan` reads the values in the background: one pass decodes a row once for all fields that
were asked for, and stops when nobody asks any more. `ReadValues` stores what it has read of one field.
"""

from __future__ import annotations

import io
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
class ValueSelection:
    """What an expression and a sort key mean for the rollouts of a table."""

    mask: Mask | None = None
    """Which rollouts meet the expression; None if there is no expression. Unmeasured rollouts never do."""
    ranks: NDArray[np.float64] | None = None
    """Values to sort by, NaN where missing; None if the sort key is a column of the table."""
    searched: float = 1.0
    version: str = ""
    """Differs between selections whose expression or sort key is the same, but for which more has been read, or
    other notes have been written."""


def _selection(columns: Columns, measured: Mask, where: str, sort: str, found: FieldValues) -> ValueSelection:
    mask, ranks, places = None, None, np.flatnonzero(measured)
    if where:
        mask = np.zeros(len(measured), bool)
        mask[places] = mask_of(columns, parse(where), found.columns) & (columns.offset < found.covered)
    if sort:
        ranks = np.full(len(measured), np.nan)
        field = parse_field(sort)
        computed = field.column if field.column in COMPUTED else None
        ranks[places] = _ranks(computed_column(columns, computed) if computed else found.columns[field])
    return ValueSelection(mask, ranks, version=f"{found.covered} {found.notes}")


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
    """The values of fields of one file as columns, and what expressions and sort keys mean for them. Thread-safe."""

    def __init__(self, path: Path, notes: RunNotes) -> None:
        self._path = path
        self._notes = notes
        self._scan = FieldScan(path)
        self._columns = PacedCache[tuple[Column, int]](_MAX_COLUMNS)
        self._noted = PacedCache[Column](_MAX_COLUMNS)
        self._selections = PacedCache[ValueSelection](_MAX_SELECTIONS)

    def select(self, columns: Columns, measured: Mask, until: int, where: str, sort: str) -> ValueSelection:
        """Evaluate an expression and a sort key; either may be empty. `measured`: which rollouts of the table are those
        of `columns`, in the same order.

        Raises ExpressionError if `where` or `sort` is invalid.
        """
        if not where and not sort:
            return ValueSelection()
        wanted = [*stored_fields(parse(where)), *note_fields(parse(where))] if where else []
        if sort and (field := parse_field(sort)).column not in COMPUTED and field not in wanted:
            wanted.append(field)
        found = self.read(wanted, until, columns.offset)  # one pass for both
        chosen = self._selections.get(
            (where, sort, Identity(columns), Identity(measured)),
            (found.covered, found.notes),
            lambda: _selection(columns, measured, where, sort, found),
            final=found.covered >= until,
        )
        return replace(chosen, searched=found.share(until))

    def named(self, columns: Columns, until: int, name: str) -> tuple[Column, float]:
        """Return the values of a field over the measured rollouts, and the share of the file that has been read for it.

        Raises ExpressionError if `name` is not a field.
        """
        field = parse_field(name)
        if field.column is not None and field.column in COMPUTED:
            return computed_column(columns, field.column), 1.0
        found = self.read([field], until, columns.offset)
        return found.columns[field], found.share(until)

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
        for kept in (self._columns, self._noted, self._selections):
            kept.clear()

    def stop(self) -> None:
        self._scan.stop()
        self._scan = FieldScan(self._path)
        self.forget()


class FieldScan:
    """The values of fields in the rows of one file, including rows appended later. Thread-safe."""

    def __init__(self, path: Path, *, pause_after_s: float = _PAUSE_AFTER_S, step: int = _STEP) -> None:
        self._path, self._pause_after_s, self._step = path, pause_after_s, step
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
            self._changed.wait_for(
                lambda: not self._running or all(one.position >= until or one.error for one in wanted), wait_s
            )
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
        reading = True
        while reading:
            start, stop, behind = self._next()
            try:
                end = self._read(start, stop, behind) if behind else start
            except OSError:
                end = start
            with self._changed:
                for one in behind:
                    one.position = max(one.position, end)
                # Ends under the lock, so that a query that comes now starts another thread.
                reading = self._running = end > start and not self._stopped and bool(self._due())
                self._changed.notify_all()

    def _next(self) -> tuple[int, int, list[ReadValues]]:
        """Return the next range of bytes, and the fields to read in it: those that are behind the others, up to where
        those are.
        """
        with self._changed:
            due = self._due()
            start = min((one.position for one in due), default=0)
            ahead = [one.position for one in due if one.position > start]
            return start, min(start + self._step, self._until, *ahead), [one for one in due if one.position == start]

    def _read(self, start: int, stop: int, fields: list[ReadValues]) -> int:
        """Read the lines that begin in the range. Return where the last complete one ends."""
        offsets = array("q")
        values: list[list[Any]] = [[] for _ in fields]
        readers = [(one.reader, kept.append) for one, kept in zip(fields, values, strict=True)]
        lines = list(_lines(self._path, start, stop))
        for line in iter_jsonl(lines, skip):  # the index reports invalid lines
            offsets.append(line.offset)
            for read, keep in readers:
                keep(read(line.value))
        rows = np.array(offsets, np.int64)
        for one, kept in zip(fields, values, strict=True):
            one.add(rows, kept)
        return start + sum(len(line) for _, line in lines)


def _lines(path: Path, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines that begin in [start, stop), each with its byte offset. A line begins at `start`."""
    with path.open("rb") as file:
        file.seek(start)
        block = file.read(stop - start)
        if not block.endswith(b"\n"):
            block += file.readline()
    offset = start
    for line in io.BytesIO(block):  # splits at `\n` only, unlike `splitlines`
        if line.endswith(b"\n"):
            yield offset, line
        offset += len(line)


class ReadValues:
    """The values of one field, as far as they have been read. One thread calls `add`; `_parts` only ever grows."""

    def __init__(self, field: FieldPath) -> None:
        self.field = field
        self.reader = reader_of(field)
        self.position = 0
        self.error = ""
        """Why the values are not kept; empty if they are."""
        self.queried = 0.0
        self._parts: list[tuple[Ints, Column | None]] = []
        """The offsets of rows, and their values; None if all of them are missing."""
        self._strings: dict[str, str] = {}
        self._bytes = 0

    def add(self, offsets: Ints, values: list[Any]) -> None:
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
        parts = [part for part in self._parts if len(part[0])]
        if not parts:
            return column_of([None] * len(offsets))
        known, values = np.concatenate([each for each, _ in parts]), _joined(parts)
        indexes = np.minimum(np.searchsorted(known, offsets), len(known) - 1)
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
