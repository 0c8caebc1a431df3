"""What currently applies to each rollout: the records, folded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from rollyard.records.notes.record import (
    AnyRecord,
    LabelAdded,
    LabelRemoved,
    Override,
    Removal,
    RolloutRef,
    TextNote,
)

K = TypeVar("K", bound=Hashable)


@dataclass
class RolloutNotes:
    """What currently applies to one rollout, in the order of the file."""

    added: dict[tuple[str, str], LabelAdded] = field(default_factory=dict)
    """By label and author: each author has labels of their own."""
    judged: dict[str, Override] = field(default_factory=dict)
    """The last verdict of each author, by author."""
    texts: list[TextNote] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        """The labels that at least one author gives the rollout."""
        return list(dict.fromkeys(label for label, _ in self.added))

    @property
    def override(self) -> Override | None:
        """The last verdict of anyone."""
        return next(reversed(self.judged.values()), None)

    @property
    def annotators(self) -> list[str]:
        """Everyone whose label, verdict or note applies."""
        labelled = [author for _, author in self.added]
        return list(dict.fromkeys([*labelled, *self.judged, *(note.author for note in self.texts)]))

    def of_author(self, author: str) -> RolloutNotes:
        """Return the part of one author."""
        return RolloutNotes(
            {key: record for key, record in self.added.items() if key[1] == author},
            {name: record for name, record in self.judged.items() if name == author},
            [note for note in self.texts if note.author == author],
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.judged or self.texts)


def fold(records: Iterable[AnyRecord], place_of: Callable[[RolloutRef], K | None]) -> dict[K, RolloutNotes]:
    """Return what applies to each place. Records whose rollout has no place (None) are left out.

    A record that a later one removes does not count, and the earlier one that it replaced applies again.
    """
    all_records = list(records)
    removed = removed_ids(all_records)
    found: dict[K, RolloutNotes] = {}
    for record in all_records:
        if record.id in removed or isinstance(record, Removal):
            continue
        place = place_of(record.rollout)
        if place is None:
            continue
        notes = found.setdefault(place, RolloutNotes())
        match record:
            case TextNote():
                notes.texts.append(record)
            case LabelAdded():
                notes.added.setdefault((record.label, record.author), record)
            case LabelRemoved():
                notes.added.pop((record.label, record.author), None)
            case Override():
                notes.judged.pop(record.author, None)  # so that the last verdict is also the last entry
                notes.judged[record.author] = record
    return {place: notes for place, notes in found.items() if notes}


def removed_ids(records: Iterable[AnyRecord]) -> set[str]:
    """Return the ids of records that do not apply, because a removal that applies names them."""
    removed: set[str] = set()
    for record in reversed([record for record in records if isinstance(record, Removal)]):
        if record.id not in removed:
            removed.add(record.removes)
    return removed
