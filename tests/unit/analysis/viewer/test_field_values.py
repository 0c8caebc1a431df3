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


def offsets_of(path: Path) -> Any:
    lengths = [len(line) for line in path.read_bytes().split(b"\n")[:-1]]
    return np.cumsum([0, *(length + 1 for length in lengths[:-1])])


def read(path: Path, field: Any = A, **options: Any) -> list[Any]:
    size = path.stat().st_size
    scan = FieldScan(path, **options)
    assert scan.progress([field], size, LONG_S) == size
    column, covered = scan.column(field, offsets_of(path))
    assert covered == size
    return column.objects()


def test_fields_that_are_asked_for_together_are_read_in_one_pass(tmp_path: Path) -> None:
    path = CountedPath(write(tmp_path / "x.jsonl", ROWS))
    size = path.stat().st_size
    CountedPath.opened = 0
    scan = FieldScan(path, step=size)
    assert scan.progress([A, B], size, LONG_S) == size
    assert CountedPath.opened == 1
    assert scan.column(A, offsets_of(path))[0].objects() == [row["a"] for row in ROWS]
    assert scan.column(B, offsets_of(path))[0].objects() == [row["b"]["c"] for row in ROWS]


def test_a_field_that_is_asked_for_later_does_not_read_the_others_again(tmp_path: Path) -> None:
    path = CountedPath(write(tmp_path / "x.jsonl", ROWS))
    size = path.stat().st_size
    scan = FieldScan(path, step=size)
    scan.progress([A], size, LONG_S)
    CountedPath.opened = 0
    scan.progress([A, B], size, LONG_S)
    scan.progress([A], size, LONG_S)
    assert CountedPath.opened == 1


@pytest.mark.parametrize("step", [1, 40, 1 << 20])
def test_values_do_not_depend_on_the_steps_in_which_the_file_is_read(tmp_path: Path, step: int) -> None:
    values = [1, 2.5, None, "text", [1, 2], True, {"k": None}, 2**70, 7]
    path = write(tmp_path / "x.jsonl", [{} if value is None else {"a": value} for value in values if value != 2**70])
    assert read(path, step=step) == [value for value in values if value != 2**70]


def test_numbers_stay_numbers_although_some_steps_have_none(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"a": 1}, {}, {"a": 2}])
    scan = FieldScan(path, step=1)
    scan.progress([A], path.stat().st_size, LONG_S)
    column, _ = scan.column(A, offsets_of(path))
    assert (column.kind, column.objects()) == (Kind.NUMBERS, [1, None, 2])


def test_lines_that_are_not_rows_are_skipped_and_a_carriage_return_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\r\n\n[1]\n{"a":\r 2}\nnonsense\n{"a":3}\n')
    assert read(path) == [1, None, None, 2, None, 3]


def test_an_incomplete_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":')
    scan = FieldScan(path)
    assert scan.progress([A], 8, LONG_S) == 8
    path.write_bytes(b'{"a":1}\n{"a":2}\n')
    assert scan.progress([A], 16, LONG_S) == 16
    assert scan.column(A, np.array([0, 8]))[0].objects() == [1, 2]


def test_reading_pauses_when_nobody_asks(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", ROWS)
    scan = FieldScan(path, step=1, pause_after_s=-1.0)
    assert scan.progress([A], path.stat().st_size, LONG_S) == 0


def test_values_that_are_too_large_to_be_kept_are_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field_values, "MAX_BYTES", 1000)
    path = write(tmp_path / "x.jsonl", [{"a": f"{number}" * 200} for number in range(10)])
    with pytest.raises(ExpressionError, match=r"of a .* MB;"):
        FieldScan(path).progress([A], path.stat().st_size, LONG_S)


def test_a_result_is_made_once_for_each_final_version() -> None:
    made = iter(range(9))
    cache = PacedCache[int](2)
    assert [cache.get("k", version, lambda: next(made), final=True) for version in (1, 1, 2, 2)] == [0, 0, 1, 1]


def test_a_result_that_took_long_is_not_updated_at_every_question() -> None:
    clock = [0.0]

    def slow() -> float:
        clock[0] += 10.0
        return clock[0]

    cache = PacedCache[float](2, clock=lambda: clock[0])
    assert cache.get("k", 1, slow, final=False) == 10.0
    clock[0] += 40.0
    assert cache.get("k", 2, slow, final=False) == 10.0
    clock[0] += 20.0
    assert cache.get("k", 3, slow, final=False) == 80.0
