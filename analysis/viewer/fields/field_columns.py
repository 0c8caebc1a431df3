"""The values of fields of one file, read when they are first needed and kept while the file only grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rollyard.analysis.metrics.loader.columns import Ints
from rollyard.analysis.viewer.fields.field_scan import FieldScan
from rollyard.analysis.viewer.fields.paced_cache import Identity, PacedCache
from rollyard.analysis.viewer.notes.run_notes import RunNotes
from rollyard.records.expressions.column import Column
from rollyard.records.expressions.field_path import FieldPath
from rollyard.records.notes.note_fields import is_note_field, note_columns

_MAX_COLUMNS = 24
_WAIT_S = 0.25
"""How long a request waits for the values, which is enough for most files."""


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
