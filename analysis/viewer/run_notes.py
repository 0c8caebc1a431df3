"""RunNotes: the current notes of one run, by the rows that they are about."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rollyard.analysis.metrics.columns import Columns
from rollyard.analysis.metrics.row_notes import RowFinder
from rollyard.records.note_records import RolloutNotes, fold
from rollyard.records.notes_file import NotesContent, NotesFile


@dataclass(frozen=True)
class PlacedNotes:
    """The notes of the rollouts that are in the file, by the byte offsets of their rows."""

    content: NotesContent = field(default_factory=NotesContent)
    by_offset: dict[int, RolloutNotes] = field(default_factory=dict)
    keys: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Byte offset -> (task, repeat)."""
    version: str = ""
    """Changes whenever the notes or the rows do."""
    lost: int = 0
    """Number of rollouts with records that are not in the file, which was collected again or cut, or is being read."""
    error: str = ""


class RunNotes:
    def __init__(self, rollouts: Path, indexed: Callable[[], tuple[int, Columns]]) -> None:
        """`indexed` returns the generation of the rollout file, which changes unless the file only grows, and the
        columns of what has been read of it.
        """
        self.file = NotesFile.beside(rollouts)
        self._rollouts = rollouts
        self._indexed = indexed
        self._finder = RowFinder(rollouts)
        self._placed = PlacedNotes()
        self._generation = -1
        self._columns: Columns | None = None
        self._lock = threading.Lock()
        self._name = secrets.token_hex(4)  # so that no version is one of a viewer that was started before
        self._changes = 0

    def current(self) -> PlacedNotes:
        with self._lock:
            content = self.file.read()
            generation, columns = self._indexed()
            if generation != self._generation:
                self._finder, self._columns, self._generation = RowFinder(self._rollouts), None, generation
            if content is not self._placed.content or columns is not self._columns:
                self._changes += 1
                version = f"{self._name}.{self._changes}"
                try:
                    self._placed, self._columns = self._place(content, columns, version), columns
                except OSError as error:
                    problem = f"{self._rollouts}: {error.strerror or error}"
                    self._placed, self._columns = PlacedNotes(content, version=version, error=problem), None
            return self._placed

    def _place(self, content: NotesContent, columns: Columns, version: str) -> PlacedNotes:
        places = self._finder.find(columns, (record.rollout for record in content.records))
        rows = {offset: self._finder.row_at(offset, 0, 0) for offset in places.values()}
        return PlacedNotes(
            content=content,
            by_offset=fold(content.records, places.get),
            keys={offset: (row.task, row.repeat) for offset, row in rows.items() if row is not None},
            version=version,
            lost=len({record.rollout for record in content.records} - places.keys()),
        )
