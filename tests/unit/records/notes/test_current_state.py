"""Records become what currently applies to each rollout."""

from __future__ import annotations

from rollyard.records.note_records import AnyRecord, RolloutNotes, fold, new_record
from tests.unit.records.notes.note_rows import record, rows

ROW = rows()[0]


def folded(*records: AnyRecord) -> RolloutNotes:
    return fold(records, lambda ref: 0).get(0, RolloutNotes())


def remove(earlier: AnyRecord, author: str = "ann") -> AnyRecord:
    return new_record("removal", author, earlier.rollout, removes=earlier.id)


def test_each_author_has_labels_of_their_own() -> None:
    both = [record(ROW, "label", author, label="loop") for author in ("ann", "bob")]
    notes = folded(*both, record(ROW, "unlabel", "ann", label="loop"))
    assert (notes.labels, notes.annotators) == (["loop"], ["bob"])


def test_the_last_verdict_of_an_author_replaces_the_earlier_ones() -> None:
    notes = folded(*(record(ROW, "override", author, verdict=verdict) for author, verdict in (
        ("ann", "wrong"), ("bob", "correct"), ("ann", 0.5),
    )))  # fmt: skip
    assert {author: one.verdict for author, one in notes.judged.items()} == {"bob": "correct", "ann": 0.5}
    assert notes.override is not None and notes.override.verdict == 0.5


def test_a_removed_verdict_gives_way_to_the_one_before_it() -> None:
    first, second = (record(ROW, "override", verdict=verdict) for verdict in ("wrong", "correct"))
    notes = folded(first, second, remove(second))
    assert notes.override == first


def test_removing_a_removal_restores_what_it_removed() -> None:
    note = record(ROW, "note", text="look")
    undone = remove(note)
    assert not folded(note, undone)
    assert folded(note, undone, remove(undone)).texts == [note]


def test_a_removal_counts_wherever_it_is_in_a_merged_file() -> None:
    note = record(ROW, "note", text="look")
    assert not folded(remove(note), note)
