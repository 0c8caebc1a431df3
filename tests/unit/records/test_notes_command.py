"""ng_notes: which rollouts it selects."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.cli.notes import run
from tests.support.rollout_files import write
from tests.unit.records.note_rows import record, rows, write_notes


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
