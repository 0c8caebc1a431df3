"""Fields are read once in the background, together, and only while they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollyard.analysis.viewer import field_values
from rollyard.analysis.viewer.caches import PacedCache
from rollyard.analysis.viewer.field_values import FieldScan
from rollyard.records.expression_parser import ExpressionError, parse_field
from rollyard.records.expressions import Kind
from tests.support.rollout_files import write

A, B = parse_field("a"), parse_field("b.c")
ROWS: list[dict[str, Any]] = [{"a": number, "b": {"c": str(number)}} for number in range(50)]
LONG_S = 60.0
"""More than any test takes; `progress` returns as soon as it is done."""


class CountedPath(type(Path())):  # type: ignore[misc]
    """A path that counts how often it is opened."""

    opened = 0

    def open(self, *arguments: Any, **options: Any) -> Any:
        type(self).opened += 1
        return super().open(*arguments, **options)


def column(scan: FieldScan, path: Path, field: Any = A) -> Any:
    """The whole column of the field, once it has been read."""
    size = path.stat().st_size
    assert scan.progress([field], size, LONG_S) == size
    lengths = [len(line) + 1 for line in path.read_bytes().split(b"\n")[:-1]]
    found, covered = scan.column(field, np.cumsum([0, *lengths[:-1]]))
    assert covered == size
    return found


def test_fields_are_read_in_one_pass_and_not_again_for_a_later_question(tmp_path: Path) -> None:
    path = CountedPath(write(tmp_path / "x.jsonl", ROWS))
    size = path.stat().st_size
    CountedPath.opened = 0
    scan = FieldScan(path, step=size)
    for fields, opened in (([A], 1), ([A, B], 2), ([A], 2)):
        scan.progress(fields, size, LONG_S)
        assert CountedPath.opened == opened
    FieldScan(path, step=size).progress([A, B], size, LONG_S)
    assert CountedPath.opened == 3
    assert column(scan, path, B).objects() == [row["b"]["c"] for row in ROWS]


@pytest.mark.parametrize("step", [1, 40, 1 << 20])
def test_values_do_not_depend_on_the_steps_in_which_the_file_is_read(tmp_path: Path, step: int) -> None:
    values = [1, 2.5, None, "text", [1, 2], True, {"k": None}, 7]
    path = write(tmp_path / "x.jsonl", [{} if value is None else {"a": value} for value in values])
    assert column(FieldScan(path, step=step), path).objects() == values


def test_numbers_stay_numbers_although_some_steps_have_none(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"a": 1}, {}, {"a": 2}])
    found = column(FieldScan(path, step=1), path)
    assert (found.kind, found.objects()) == (Kind.NUMBERS, [1, None, 2])


def test_lines_that_are_not_rows_are_skipped_and_a_carriage_return_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\r\n\n[1]\n{"a":\r 2}\nnonsense\n{"a":3}\n')
    assert column(FieldScan(path), path).objects() == [1, None, None, 2, None, 3]


def test_an_incomplete_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":')
    scan = FieldScan(path)
    assert scan.progress([A], 8, LONG_S) == 8
    path.write_bytes(b'{"a":1}\n{"a":2}\n')
    assert column(scan, path).objects() == [1, 2]


def test_reading_pauses_when_nobody_asks(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", ROWS)
    assert FieldScan(path, step=1, pause_after_s=-1.0).progress([A], path.stat().st_size, LONG_S) == 0


def test_values_that_are_too_large_to_be_kept_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_values, "MAX_BYTES", 1000)
    path = write(tmp_path / "x.jsonl", [{"a": f"{number}" * 200} for number in range(10)])
    with pytest.raises(ExpressionError, match=r"of a .* MB;"):
        FieldScan(path).progress([A], path.stat().st_size, LONG_S)


def test_a_result_is_made_once_for_each_final_version_and_not_at_every_question_if_it_takes_long() -> None:
    clock = [0.0]

    def slow() -> float:
        clock[0] += 10.0
        return clock[0]

    cache = PacedCache[float](2, clock=lambda: clock[0])
    found = []
    for version, final, later in ((1, True, 0.0), (1, True, 0.0), (2, True, 40.0), (3, False, 20.0), (4, False, 0.0)):
        found.append(cache.get("k", version, slow, final=final))
        clock[0] += later
    assert found == [10.0, 10.0, 20.0, 20.0, 90.0]
