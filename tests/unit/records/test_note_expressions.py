"""Labels and verdicts in expressions: +where= of reports and ng_notes, and `read_rollouts`."""

from __future__ import annotations

import gzip
from pathlib import Path

import orjson
import pytest

from rollyard import annotate, read_rollouts
from rollyard.analysis.metrics.load import load
from rollyard.cli.notes import run
from rollyard.records.errors import OperatorError
from rollyard.records.note_records import new_record, ref_of
from tests.support.rollout_files import write
from tests.unit.records.note_rows import record, rows, write_notes

ROWS = rows()


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Six rollouts: the first two are loops, ann says that the first is wrong, and bob gives the third half a point."""
    path = write(tmp_path / "x.jsonl", ROWS)
    write_notes(
        path,
        record(ROWS[0], "label", label="loop"),
        record(ROWS[1], "label", "bob", label="loop"),
        record(ROWS[1], "label", "bob", label="give-up"),
        record(ROWS[0], "override", verdict="wrong", reason="guessed"),
        record(ROWS[2], "override", "bob", verdict=0.5),
        record(ROWS[3], "note", text="look at turn 3"),
    )
    return path


EXPRESSIONS = {
    '"loop" in labels': [0, 1],
    '"loop" in labels and not success': [1],
    'override == "wrong"': [0],
    "override < 1": [2],
    "not labels": [2, 3, 4, 5],
    "labels == null and override == null": [3, 4, 5],
    '"bob" in annotators': [1, 2],
    '"ann" in annotators and note_texts': [3],
    'overrides.ann == "wrong"': [0],
    '"give-up" in labels_by.bob': [1],
    "len(labels) == 2": [1],
}


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_a_report_and_the_python_api_select_the_same_labelled_rollouts(labelled: Path, where: str) -> None:
    columns = load(labelled, where=where).columns
    expected = [divmod(at, 2) for at in EXPRESSIONS[where]]
    assert list(zip(columns.task.tolist(), columns.repeat.tolist(), strict=True)) == expected
    found = read_rollouts(labelled, where=where)
    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in found] == expected


def test_a_field_of_the_rows_with_the_name_of_a_note_field_needs_the_prefix_row(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{**row, "labels": ["own"]} for row in ROWS])
    assert len(list(read_rollouts(path, where='"own" in row.labels'))) == 6
    with pytest.raises(OperatorError, match="6 rollouts"):
        load(path, where='"own" in labels')


def test_labels_of_a_compressed_file_are_read_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(write(tmp_path / "x.jsonl", ROWS).read_bytes()))
    write_notes(path, record(ROWS[4], "label", label="loop"))
    assert [row["_ng_task_index"] for row in read_rollouts(path, where='"loop" in labels')] == [2]


def test_the_current_notes_of_rows_without_an_index_are_told_apart(tmp_path: Path) -> None:
    without = [{key: value for key, value in row.items() if not key.endswith("_index")} for row in ROWS]
    path = write(tmp_path / "x.jsonl", without)
    notes = annotate(path, author="ann")
    for row in without[1:3]:
        notes.add_label(row, "loop")
    assert list(notes.current()) == [(1, 0), (2, 0)]


def test_equal_rows_without_an_index_are_told_apart_as_in_the_viewer(tmp_path: Path) -> None:
    one = {key: value for key, value in ROWS[0].items() if not key.endswith("_index")}
    path = write(tmp_path / "x.jsonl", [{**one, "number": number} for number in range(3)])
    write_notes(path, new_record("label", "ann", ref_of(one, 1, 0), label="second"))
    where = '"second" in labels'
    assert [row["number"] for row in read_rollouts(path, where=where)] == [1]  # type: ignore[typeddict-item]
    assert load(path, where=where).columns.task.tolist() == [1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [(["+where=success"], [(0, 0)]), (["+where=success", "+pass_threshold=0"], [(0, 0), (0, 1)])],
)
def test_success_in_an_expression_is_what_the_table_counts_as_solved(
    tmp_path: Path, options: list[str], expected: list[tuple[int, int]]
) -> None:
    without_success = [{key: value for key, value in row.items() if key != "success"} for row in rows()]
    path = write(tmp_path / "x.jsonl", without_success)
    write_notes(path, *(record(row, "override", verdict="wrong") for row in without_success[:2]))
    out = tmp_path / "out.jsonl"
    run([str(path), f"+output_jsonl_fpath={out}", *options])
    notes = [orjson.loads(line)["_ng_notes"] for line in out.read_bytes().splitlines()]
    assert [(one["task"], one["repeat"]) for one in notes] == expected
