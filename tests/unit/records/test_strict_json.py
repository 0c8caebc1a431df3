"""Exact JSON: every value is read exactly as written, or its line is rejected."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.errors import OperatorError
from rollyard.records.rows import rows_of
from rollyard.records.strict_json import check_exact
from rollyard.services.datasets.mixture import TaskFile

START = '{"responses_create_params": {"input": "hi"}, '


def problem(tmp_path: Path, rest: str | bytes) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(START.encode() + (rest.encode() if isinstance(rest, str) else rest) + b"}\n")
    (row,) = rows_of(path)
    return row.problem


INEXACT = [
    *("18446744073709551616", "-9223372036854775809", "1" * 5000, "9007199254740993.0", "3.14159265358979323846"),
    *("1e-400", "1.2345e-320", "-1E-0400", "123456789012345678901e0", f"0.{'0' * 400}1"),
]
EXACT = [
    *("18446744073709551615", "-9223372036854775808", "9007199254740993", "0.30000000000000004", "5e-324", "-0.0"),
    *("1.1000000000000000000", "1.7976931348623157e308", "0.10000000000000001", "1E5", "100000000000000000000.0"),
]
PLACES = ['"n": {}', '"deep": [[{{"n":{}}}]]', '"n":\t{} ', '"a:b": "\\u003a", "n": {}']


@pytest.mark.parametrize(
    ("number", "place"), [*((number, PLACES[0]) for number in INEXACT), *((INEXACT[0], place) for place in PLACES[1:])]
)
def test_a_number_that_would_be_rounded_is_rejected_and_quoted(tmp_path: Path, number: str, place: str) -> None:
    assert f"'{number[:30]}" in problem(tmp_path, place.format(number))


@pytest.mark.parametrize("number", EXACT)
def test_a_number_that_stays_exact_is_accepted(tmp_path: Path, number: str) -> None:
    assert problem(tmp_path, f'"n": {number}') == ""


@pytest.mark.parametrize(
    "pairs",
    [
        '"a": 1, "a": 1',
        '"a": 1, "a": "x:y"',
        '"x": {"b": 1, "c": 2, "b" : 3}',
        '"a":1,"a" :2',
        '"\\u0061": 1, "a": 2',
        '"a": 1, "a": 2, "s": "\\u003a"',
        '"responses_create_params": {"input": "other"}',
        '"": 1, "": 2',
    ],
)
def test_a_repeated_key_is_rejected(tmp_path: Path, pairs: str) -> None:
    assert "twice" in problem(tmp_path, pairs)


@pytest.mark.parametrize(
    "rest", ['"a": NaN', '"a": -Infinity', '"a": "\\ud800"', b'"a": "\xff"', '"a": 1} {"b": 2', '"a": 01']
)
def test_invalid_json_is_rejected(tmp_path: Path, rest: str | bytes) -> None:
    assert problem(tmp_path, rest).startswith(" is not JSON")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("id", value) for value in ('""', '"  "', '"a\\nb"', '"a\\u2028b"', '" a"')),
        *((key, '" a"') for key in ("prompt_id", "task_id", "level_id")),
    ],
)
def test_an_id_that_does_not_fit_on_a_line_is_rejected_with_its_key(tmp_path: Path, key: str, value: str) -> None:
    assert f": {key} " in problem(tmp_path, f'"{key}": {value}')


def test_a_rejected_row_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(START + '"n": 1}\n\n' + START + '"n": 123456789012345678901234}\n')
    with pytest.raises(OperatorError, match=r"rows\.jsonl: line 3: .*'123456789012345678901234'"):
        TaskFile(path, agent="a", limit=None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=60)
@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_any_json_that_python_writes_is_accepted(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")
    check_exact(text, orjson.dumps(orjson.loads(text)))
