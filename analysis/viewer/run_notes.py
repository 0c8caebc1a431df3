"""RunNotes: the current notes of one run, by the rows that they are about."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rollyard.analysis.metrics.columns import Columns
from rollyard.analysis.metrics.row_notes import RowFinder
from rollyard.records.note_records import AnyRecord, Removal, RolloutNotes, RolloutRef, fold
from rollyard.records.notes_file import NotesContent, NotesFile


@dataclass(frozen=True)
class PlacedNotes:
    """The notes of the rollouts that are in the file, by the byte offsets of their rows."""

    content: NotesContent = field(default_factory=NotesContent)
    by_offset: dict[int, RolloutNotes] = field(default_factory=dict)
    places: dict[RolloutRef, int] = field(default_factory=dict)
    keys: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Byte offset -> (task, repeat)."""
    epoch: int = 0
    """Changes if earlier records have changed, or are about other rows than before."""
    lost: int = 0
    """Number of rollouts with records that are not in the file, which was collected again or cut, or is being read."""
    error: str = ""

    @property
    def version(self) -> str:
        return f"{self.epoch}.{len(self.content.records)}"

    def changed_since(self, version: str) -> list[int] | None:
        """Return the offsets of rows whose notes may differ from those of `version`; None if all of them may."""
        epoch, _, count = version.partition(".")
        if epoch != str(self.epoch) or not count.isdecimal():
            return None
        if int(count) >= len(self.content.records):
            return []
        targets = {record.id: record.rollout for record in self.content.records}
        refs: list[RolloutRef] = []
        for record in self.content.records[int(count) :]:
            refs += _refs(record, targets)
        return list(dict.fromkeys(self.places[ref] for ref in refs if ref in self.places))


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

    def current(self) -> PlacedNotes:
        with self._lock:
            content = self.file.read()
            generation, columns = self._indexed()
            if generation != self._generation:
                self._finder, self._columns, self._generation = RowFinder(self._rollouts), None, generation
            if content is not self._placed.content or columns is not self._columns:
                try:
                    self._place(content, columns)
                except OSError as error:
                    self._placed = PlacedNotes(content=content, error=f"{self._rollouts}: {error.strerror or error}")
                    self._columns = None
            return self._placed

    def _place(self, content: NotesContent, columns: Columns) -> None:
        before = self._placed
        places = self._finder.find(columns, (record.rollout for record in content.records))
        moved = any(places.get(ref) != offset for ref, offset in before.places.items())
        arrived = any(
            ref not in before.places for record in before.content.records if (ref := record.rollout) in places
        )
        rewritten = content.generation != before.content.generation
        keys = {}
        for offset in places.values():
            row = self._finder.row_at(offset, 0, 0)
            if row is not None:
                keys[offset] = row.task, row.repeat
        self._columns = columns
        self._placed = PlacedNotes(
            content=content,
            by_offset=fold(content.records, places.get),
            places=places,
            keys=keys,
            epoch=before.epoch + (moved or arrived or rewritten),
            lost=len({record.rollout for record in content.records} - places.keys()),
        )


def _refs(record: AnyRecord, targets: dict[str, RolloutRef]) -> list[RolloutRef]:
    """Return the rollouts that a record changes: its own, and that of the record which it removes."""
    target = targets.get(record.removes) if isinstance(record, Removal) else None
    return [record.rollout] if target is None else [record.rollout, target]
