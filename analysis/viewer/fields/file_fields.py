"""Answers questions about the fields of one rollout file: values of a page of the list, selections, known keys."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollyard.analysis.metrics.loader.columns import Columns, Ints
from rollyard.analysis.metrics.loader.computed_columns import COMPUTED, computed_column
from rollyard.analysis.metrics.loader.where import stored_fields
from rollyard.analysis.viewer.api.rollout_list import SORTS
from rollyard.analysis.viewer.api.untrusted_values import sanitize
from rollyard.analysis.viewer.fields.cells import PROMPT, heads_of, reader_of, requested, shortened
from rollyard.analysis.viewer.fields.field_columns import FieldColumns
from rollyard.analysis.viewer.fields.field_records import ColumnHead, ExpressionCheck, Keys
from rollyard.analysis.viewer.fields.known_keys import known_keys
from rollyard.analysis.viewer.fields.paced_cache import Identity, PacedCache
from rollyard.analysis.viewer.fields.selection import Selection, Selections, column_named
from rollyard.analysis.viewer.notes.run_notes import RunNotes
from rollyard.records.expressions.column import Column
from rollyard.records.expressions.evaluate import Mask
from rollyard.records.expressions.parse import ExpressionError, parse, parse_field
from rollyard.records.io.jsonl import lenient
from rollyard.records.io.lines import line_at
from rollyard.records.notes.note_fields import NOTE_FIELDS, is_note_field, note_columns
from rollyard.records.rollouts.tokens.derived_fields import DERIVED
from rollyard.records.types import Json

MAX_PAGE_BYTES = 48 << 20
"""Maximum size of the rows that are read for one page. The values of further rows are left out."""
_SAMPLE = 200
"""Number of rows in which keys are looked for."""
_LINE = ("outcome", *SORTS)
"""Columns that every line of the list has."""
_MAX_PAGES = 8
"""Number of pages whose values are kept, because a page is requested again while the file is searched."""
_MAX_ANSWERS = 16

Cells = tuple[tuple[Any, ...], ...]
Heads = tuple[ColumnHead, ...]


class FileFields:
    """Thread-safe."""

    def __init__(self, path: Path, notes: RunNotes) -> None:
        self._path = path
        self._notes = notes
        self._columns = FieldColumns(path, notes)
        self._selections = Selections(self._columns)
        self._pages = PacedCache[tuple[Heads, Cells]](_MAX_PAGES)
        self.answers = PacedCache[Any](_MAX_ANSWERS)
        """Facets and groups, by their queries."""
        self._keys: tuple[Ints, Keys] | None = None

    def select(self, columns: Columns, measured: Mask, until: int, where: str, sort: str) -> Selection:
        """Evaluate an expression and a sort key; either may be empty. Raises ExpressionError."""
        return self._selections.of(columns, measured, until, where, sort)

    def column(self, columns: Columns, until: int, name: str) -> tuple[Column, float]:
        """Return the values of a field over the measured rollouts, and the share of the file that has been read for it.

        Raises ExpressionError if `name` is not a field.
        """
        found, values = column_named(self._columns, columns, until, name)
        return found, values.share(until)

    def cells(self, columns: Columns, offsets: Sequence[int], places: Sequence[int], names: str) -> tuple[Heads, Cells]:
        """Return the columns, and the values of each of the rows that begin at `offsets` (negative: no row).

        `places`: the index of each row in `columns`, negative for unmeasured ones. Raises ExpressionError if a name is
        not a field, and OSError if the file cannot be read.
        """
        key = names, tuple(offsets), Identity(columns)
        return self._pages.get(
            key, self._notes.current().version, lambda: self._cells(columns, offsets, places, names), final=True
        )

    def _cells(
        self, columns: Columns, offsets: Sequence[int], places: Sequence[int], names: str
    ) -> tuple[Heads, Cells]:
        wanted = requested(names)
        needs_rows = not set(wanted) <= set(_LINE)
        rows = list(self._rows(offsets)) if needs_rows else [None] * len(offsets)
        heads = heads_of(wanted, rows, _LINE)
        readers = [self._reader(head, columns, places, offsets) for head in heads]
        values = tuple(tuple(read(at, row) for read in readers) for at, row in enumerate(rows))
        return tuple(heads), values

    def keys(self, columns: Columns) -> Keys:
        """Return the fields of a sample of the rows. Raises OSError if the file cannot be read."""
        cached = self._keys
        if cached is not None and cached[0] is columns.offset:
            return cached[1]
        offsets = np.sort(columns.offset)
        places = np.unique(np.linspace(0, max(len(offsets) - 1, 0), _SAMPLE).astype(np.intp))[: len(offsets)]
        found = known_keys([row for row in map(sanitize, self._rows(offsets[places].tolist())) if row is not None])
        self._keys = columns.offset, found
        return found

    def check(self, columns: Columns, text: str) -> ExpressionCheck:
        """Return what is wrong with an expression, or which of its fields no sampled row has."""
        try:
            fields = stored_fields(parse(text))
        except ExpressionError as error:
            return ExpressionCheck(error=str(error))
        keys = self.keys(columns)
        names = [parse_field(key.path) for key in keys.keys]
        known = {*map(str, names), *COMPUTED, *DERIVED, *NOTE_FIELDS}
        for field in fields:
            if field.column in DERIVED:
                if field.column in keys.computed:
                    continue
                return ExpressionCheck(error="", hint=f"no sampled row has the tokens that {field} is computed from")
            parts = field.parts
            if not any(name.parts[: len(parts)] == parts or parts[: len(name.parts)] == name.parts for name in names):
                close = difflib.get_close_matches(str(field), known, 2)
                similar = f"; similar: {', '.join(close)}" if close else ""
                return ExpressionCheck(error="", hint=f"no sampled row has the field {field}{similar}")
        return ExpressionCheck(error="")

    def _reader(
        self, head: ColumnHead, columns: Columns, places: Sequence[int], offsets: Sequence[int]
    ) -> Callable[[int, Json | None], Any]:
        if head.path != PROMPT and is_note_field(field := parse_field(head.path)):
            noted = note_columns([field], self._notes.current().by_offset, offsets)[field].objects()
            return lambda at, row: shortened(noted[at])
        return _reader(head, columns, places)

    def forget(self) -> None:
        """Forget the answers, because they belong to an older list of rollouts, which they would keep in memory."""
        for kept in (self._selections, self._pages, self.answers):
            kept.clear()
        self._columns.forget()

    def stop(self) -> None:
        """Stop reading, because the file was changed or is being closed."""
        self._columns.stop()
        self.forget()
        self._keys = None

    def _rows(self, offsets: Iterable[int]) -> Iterable[Json | None]:
        """Yield the rows as they are in the file, because sanitizing entire rows takes longer than parsing them."""
        budget = MAX_PAGE_BYTES
        for offset in offsets:
            if offset < 0 or budget <= 0:
                yield None
                continue
            line = line_at(self._path, offset)
            budget -= len(line)
            yield _row(line)


def _row(line: bytes) -> Json | None:
    try:
        row = lenient(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _reader(head: ColumnHead, columns: Columns, places: Sequence[int]) -> Callable[[int, Json | None], Any]:
    """Return a function that returns a column's value in one of the rows."""
    if head.path in COMPUTED and len(columns):
        values = computed_column(columns, head.path).take(np.maximum(np.array(places, np.intp), 0)).objects()
        return lambda at, row: values[at] if places[at] >= 0 else None
    read = reader_of(head)
    return lambda at, row: None if row is None else read(row)
