"""The fields that expressions read from the notes of a rollout: `"loop" in labels`, `override == "wrong"`.

They hide fields of the same name in rows, which `row.labels` names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollyard.records.expressions.column import Column, column_of
from rollyard.records.expressions.field_path import FieldPath
from rollyard.records.notes.current_state import RolloutNotes
from rollyard.records.types import Json

NOTE_FIELDS = ("labels", "override", "annotators", "note_texts", "labels_by", "overrides")
"""`labels`: a list of the labels of all authors. `override`: the last verdict, "correct", "wrong" or a reward.
`annotators`: a list of the authors. `note_texts`: a list of the notes. `labels_by.ann`, `overrides.ann`: labels and
verdict of one author. Rollouts without any have no value (null).
"""


def is_note_field(field: FieldPath) -> bool:
    """Return whether an expression's field is read from the notes."""
    return not field.raw and field.parts[0] in NOTE_FIELDS


def note_values(notes: RolloutNotes) -> Json:
    """Return the values of NOTE_FIELDS, without those that are missing."""
    by_author: dict[str, list[str]] = {}
    for label, author in notes.added:
        by_author.setdefault(author, []).append(label)
    found: Json = {
        "labels": notes.labels,
        "override": None if notes.override is None else notes.override.verdict,
        "annotators": notes.annotators,
        "note_texts": [note.text for note in notes.texts],
        "labels_by": by_author,
        "overrides": {author: one.verdict for author, one in notes.judged.items()},
    }
    return {name: value for name, value in found.items() if value is not None and value not in ([], {})}


def note_columns(
    fields: Sequence[FieldPath], notes: Mapping[int, RolloutNotes], places: Sequence[int]
) -> dict[FieldPath, Column]:
    """Return a column for each of the fields. `notes`: by place; `places`: those of the column's rollouts."""
    values = [note_values(notes[place]) if place in notes else {} for place in places]
    return {field: column_of([field.value(one) for one in values]) for field in fields}
