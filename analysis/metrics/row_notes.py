"""The notes on the rollouts of a file, and RowFinder, which finds their rows and reads only those that may be meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from rollyard.analysis.metrics.columns import Columns, Ints, content_of
from rollyard.records.errors import RunError
from rollyard.records.jsonl import lenient, line_at
from rollyard.records.note_records import (
    PROMPT_PREFIX,
    AnyRecord,
    RolloutNotes,
    RolloutRef,
    fold,
    placed,
    ref_of,
    task_key_of,
)
from rollyard.records.notes_file import NotesFile
from rollyard.records.rollout_file import Rollouts


class RowFinder:
    """Keeps the identities of the rows that it has read, for as long as the file only grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[int, RolloutRef | None] = {}
        """By byte offset; None for a line that is not a row."""

    def find(self, columns: Columns, refs: Iterable[RolloutRef]) -> dict[RolloutRef, int]:
        """Return the byte offsets of the rows that are in the file. Raises OSError if it cannot be read."""
        wanted = list(dict.fromkeys(refs))
        rows = {**self._measured(columns, wanted, same_repeat=True), **self._unmeasured(columns, wanted)}
        found = placed(wanted, rows.items())
        missing = [ref for ref in wanted if ref not in found]
        if missing:
            rows |= self._measured(columns, missing, same_repeat=False)
            found = placed(wanted, rows.items())
        return found

    def row_at(self, offset: int, task: int, repeat: int) -> RolloutRef | None:
        """Return the identity of the row that begins at a byte offset; None if there is no row."""
        if offset not in self._rows:
            try:
                row = lenient(line_at(self._path, offset))
            except ValueError:  # the file has changed since it was indexed
                row = None
            self._rows[offset] = ref_of(row, task, repeat) if isinstance(row, dict) else None
        return self._rows[offset]

    def _measured(self, columns: Columns, refs: Sequence[RolloutRef], *, same_repeat: bool) -> dict[int, RolloutRef]:
        """Return the rows of the tasks of `refs`, only those with their repeats if `same_repeat`."""
        keys = {ref.task_key for ref in refs}
        of_prompts = {key for key in keys if key.startswith(PROMPT_PREFIX)}
        contents, prompts = _signed(keys - of_prompts), _signed(key.removeprefix(PROMPT_PREFIX) for key in of_prompts)
        mask = np.isin(columns.content, contents) & (columns.content != 0)
        mask |= (columns.content == 0) & np.isin(columns.prompt, prompts)
        if same_repeat:
            mask &= np.isin(columns.repeat, [ref.repeat for ref in refs])
        found = np.flatnonzero(mask)
        return self._read(columns.task[found], columns.repeat[found], columns.offset[found])

    def _unmeasured(self, columns: Columns, refs: Sequence[RolloutRef]) -> dict[int, RolloutRef]:
        lost = columns.unmeasured
        hints = {(ref.task, ref.repeat) for ref in refs}
        mask = np.array([pair in hints for pair in zip(lost.task.tolist(), lost.repeat.tolist(), strict=True)], bool)
        return self._read(lost.task[mask], lost.repeat[mask], lost.offset[mask])

    def _read(self, tasks: Ints, repeats: Ints, offsets: Ints) -> dict[int, RolloutRef]:
        rows = sorted(zip(offsets.tolist(), tasks.tolist(), repeats.tolist(), strict=True))  # faster to read in order
        return {offset: row for offset, task, repeat in rows if (row := self.row_at(offset, task, repeat)) is not None}


def _signed(keys: Iterable[str]) -> list[int]:
    """Return the keys as the signed integers that the columns contain, without those that are not such integers."""
    return [number for key in keys if (number := content_of(key))]


def notes_in(path: Path, columns: Columns) -> dict[int, RolloutNotes]:
    """Return the notes of an indexed file. Raises RunError if notes cannot be read, and OSError if rollouts cannot."""
    records = records_of(path)
    place_of = RowFinder(path).find(columns, (record.rollout for record in records))
    return fold(records, place_of.get)


def notes_of_rows(path: Path) -> dict[int, RolloutNotes]:
    """Return the notes of a file without an index, such as a compressed one.

    Raises RunError if a file cannot be read.
    """
    records = records_of(path)
    if not records:
        return {}
    keys = {record.rollout.task_key for record in records}
    # The task of a row without an index is its position in the file, as in the viewer.
    found = (
        (offset, ref_of(row, None if "_ng_task_index" in row else number))
        for number, (offset, row) in enumerate(Rollouts(path).with_offsets())
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
