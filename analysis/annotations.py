"""Annotations: notes of a rollout file for programs, such as a judge that labels rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollyard.analysis.metrics.row_notes import notes_of_rows
from rollyard.records.errors import OperatorError
from rollyard.records.note_records import new_record, note_values, ref_of
from rollyard.records.notes_file import NotesFile
from rollyard.records.rollout_file import Rollouts
from rollyard.records.types import Json


class Annotations:
    """Adds labels, verdicts and notes to the rollouts of one file. `row` is a row of it, as `read_rollouts` yields it.

    Every method returns the id of the record that it appends to X_notes.jsonl, which `remove` takes. They raise
    OperatorError if a value is invalid, and RunError if the file cannot be written. Threads and processes may share it.
    """

    def __init__(self, path: Path, author: str) -> None:
        """`author`: the name of the program or person. Raises RunError if `path` is not a file."""
        self.path = Rollouts(path).path
        self.author = author
        self._file = NotesFile.beside(path)

    def add_label(self, row: Mapping[str, Any], label: str) -> str:
        """Give the rollout a label, such as `loop`."""
        return self._append(row, "label", label=label)

    def remove_label(self, row: Mapping[str, Any], label: str) -> str:
        """Take back a label of this author."""
        return self._append(row, "unlabel", label=label)

    def judge(self, row: Mapping[str, Any], verdict: str | float, reason: str = "") -> str:
        """Override the verifier. `verdict`: `correct`, `wrong`, or the reward that the rollout should have."""
        return self._append(row, "override", verdict=verdict, reason=reason)

    def write(self, row: Mapping[str, Any], text: str) -> str:
        return self._append(row, "note", text=text)

    def remove(self, row: Mapping[str, Any], record: str) -> str:
        """Remove an earlier record about the rollout, by its id. It stays in the file and no longer counts."""
        return self._append(row, "removal", removes=record)

    def current(self) -> dict[tuple[int, int], Json]:
        """Return what applies, as (task index or position, rollout index) -> `labels`, ... as in expressions.

        Raises RunError if a file cannot be read.
        """
        notes = notes_of_rows(self.path)
        if not notes:
            return {}
        keys = (
            (offset, (row.get("_ng_task_index", number), row.get("_ng_rollout_index", 0)))
            for number, (offset, row) in enumerate(Rollouts(self.path).with_offsets())
        )
        return {key: note_values(notes[offset]) for offset, key in keys if offset in notes}

    def _append(self, row: Mapping[str, Any], kind: str, **fields: Any) -> str:
        try:
            record = new_record(kind, self.author, ref_of(row), **fields)
        except ValueError as error:
            raise OperatorError(f"the {kind} is invalid: {error}") from error
        self._file.append(record)
        return record.id
