"""What currently applies to each rollout, and which rollout records are about: by content, and never another one."""

from __future__ import annotations

from rollyard.records.note_records import AnyRecord, RolloutNotes, RolloutRef, fold, new_record, placed, ref_of
from rollyard.records.types import Json
from tests.unit.records.note_rows import answered, record, rows

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
    given = (("ann", "wrong"), ("bob", "correct"), ("ann", 0.5))
    notes = folded(*(record(ROW, "override", author, verdict=verdict) for author, verdict in given))
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


def places(refs: list[RolloutRef], file: list[Json]) -> list[int | None]:
    found = placed(refs, enumerate(map(ref_of, file)))
    return [found.get(ref) for ref in refs]


def test_a_reordered_file_with_other_task_indexes_keeps_its_notes() -> None:
    file = rows()
    refs = [ref_of(row) for row in file]
    moved = [{**row, "_ng_task_index": 2 - row["_ng_task_index"]} for row in file[::-1]]
    assert places(refs, moved) == [5, 4, 3, 2, 1, 0]


def test_a_rollout_that_was_collected_again_does_not_inherit_the_notes_of_the_old_one() -> None:
    old = answered(0, 0, "first try")
    assert places([ref_of(old)], [answered(0, 0, "second try"), answered(1, 0, "first try")]) == [None]


def test_repeats_that_were_numbered_again_are_found_by_their_response() -> None:
    file = [answered(0, repeat, text) for repeat, text in enumerate("abc")]
    refs = [ref_of(row) for row in file]
    assert places(refs, [{**row, "_ng_rollout_index": row["_ng_rollout_index"] + 10} for row in file]) == [0, 1, 2]


def test_two_rollouts_with_equal_responses_stay_two_after_their_repeats_change() -> None:
    file = [answered(0, repeat, "same") for repeat in range(2)]
    refs = [ref_of(row) for row in file]
    moved = [answered(0, repeat, "same") for repeat in (5, 6)]
    assert places(refs, moved) == [0, 1]


def test_duplicate_tasks_are_told_apart_by_their_index() -> None:
    file = [{**answered(0, 0, "same"), "_ng_task_index": task} for task in (4, 7)]
    assert places([ref_of(file[1]), ref_of(file[0])], file) == [1, 0]


def test_a_row_without_token_ids_that_was_scored_again_is_the_same_rollout() -> None:
    row = answered(0, 0, "text")
    item = row["response"]["output"][0]
    recorded = {**row, "response": {"output": [{**item, "id": "msg_2", "generation_token_ids": [1, 2]}]}, "reward": 0.0}
    assert ref_of(recorded) == ref_of(row)


def test_rows_of_other_programs_are_identified_by_their_prompt() -> None:
    file = [{key: value for key, value in row.items() if key != "_ng_task_key"} for row in rows()]
    refs = [ref_of(row) for row in file]
    assert len({ref.task_key for ref in refs}) == 3
    assert places(refs, file[::-1]) == [5, 4, 3, 2, 1, 0]


def test_records_of_rollouts_without_a_place_are_left_out() -> None:
    note = record(ROW, "note", text="look")
    assert fold([note], lambda ref: None) == {}
