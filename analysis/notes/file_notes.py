"""The notes of a complete rollout file, by the byte offset of each row."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rollyard.analysis.metrics.loader.columns import Columns
from rollyard.analysis.notes.row_finder import RowFinder
from rollyard.records.errors import RunError
from rollyard.records.notes.current_state import RolloutNotes, fold
from rollyard.records.notes.notes_file import NotesFile
from rollyard.records.notes.placement import placed
from rollyard.records.notes.record import AnyRecord
from rollyard.records.notes.rollout_identity import ref_of, task_key_of
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.rollouts.rollout_file import Rollouts


def notes_in(path: Path, columns: Columns) -> dict[int, RolloutNotes]:
    """Return the notes of an indexed file. Raises RunError if the notes cannot be read, and OSError if the rollouts
    cannot.
    """
    records = records_of(path)
    place_of = RowFinder(path).find(columns, (record.rollout for record in records))
    return fold(records, place_of.get)


def notes_of_rows(path: Path, rows: Iterable[tuple[int, RolloutRow]] | None = None) -> dict[int, RolloutNotes]:
    """Return the notes of a file that has no index, such as a compressed one; reads it once if there are notes.

    `rows`: its rows with their offsets, if they have been read. Raises RunError if a file cannot be read.
    """
    records = records_of(path)
    if not records:
        return {}
    keys = {record.rollout.task_key for record in records}
    # The task of a row without an index is its position in the file, as in the viewer.
    found = (
        (offset, ref_of(row, None if "_ng_task_index" in row else number))
        for number, (offset, row) in enumerate(rows or Rollouts(path).with_offsets())
        if task_key_of(row) in keys
    )
    place_of = placed((record.rollout for record in records), found)
    return fold(records, place_of.get)


def records_of(path: Path) -> tuple[AnyRecord, ...]:
    """Return the records about a rollout file. Raises RunError if they cannot be read."""
    content = NotesFile.beside(path).read()
    if content.error:
        raise RunError(content.error)
    return content.records
