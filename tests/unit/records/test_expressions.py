from __future__ import annotations

from typing import Any

import pytest

from rollyard.records.expression_parser import MAX_DEPTH, ExpressionError, fields_of, parse
from rollyard.records.expressions import Kind, column_of, evaluate, selected

ROWS: list[dict[str, Any]] = [
    {"reward": 1.0, "calls": 2, "success": True, "end": "done", "text": "Answer 42"}
    | {"parts": [1, 2], "scores": {"a": 1}},
    {"reward": 0.0, "calls": 5, "success": False, "end": "length", "text": "", "parts": [], "scores": {}},
    {"reward": None, "calls": None, "success": None, "end": None, "text": None, "parts": None, "scores": None},
    {"reward": -1, "calls": 0, "success": False, "end": "max", "text": "answer", "parts": ["x"], "scores": {"b": 2}},
]


def chosen(text: str, rows: list[dict[str, Any]] = ROWS) -> list[int]:
    node = parse(text)
    columns = {path: column_of([path.value(row) for row in rows]) for path in fields_of(node)}
    return [index for index, holds in enumerate(selected(node, columns, len(rows)).tolist()) if holds]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reward < 0.5", [1, 3]),
        ("reward < 0.5 and calls > 3", [1]),
        ("reward == 1 or calls == 0", [0, 3]),
        ("not reward < 0.5", [0, 2]),
        ("-1 <= reward < 1", [1, 3]),
        ("success", [0]),
        ("success == true", [0]),
        ("success == false", [1, 3]),
        ("reward != 1", [1, 2, 3]),
        ("reward == null", [2]),
        ("reward != null", [0, 1, 3]),
        ('end == "length"', [1]),
        ('end in ["length", "max"]', [1, 3]),
        ('end not in ["length", "max"]', [0, 2]),
        ("reward in [1, null]", [0, 2]),
        ("reward in []", []),
        ('"42" in text', [0]),
        ('"answer" in lower(text)', [0, 3]),
        ('startswith(text, "Answer")', [0]),
        ('endswith(text, "er")', [3]),
        ("len(text) > 6", [0]),
        ("len(parts) == 0", [1]),
        ("2 in parts", [0]),
        ("parts[0] == 1", [0]),
        ('parts[-1] == "x"', [3]),
        ("scores.a == 1", [0]),
        ('"b" in scores', [3]),
        ("text", [0, 3]),
        ("parts", [0, 3]),
        ("calls", [0, 1]),
        ("calls * 2 - 4 == 0", [0]),
        ("calls / reward > 0", [0]),
        ("1 / reward == null", [1, 2]),
        ("calls % 2 == 1", [1]),
        ("abs(reward) == 1", [0, 3]),
        ("reward - reward == null", [2]),
        ("unknown == 1", []),
        ("unknown == null", [0, 1, 2, 3]),
        ("text > 3", []),
        ('text == 3 or "a" < text', [3]),
        ("parts < 3", []),
        ('lower(calls) == "2"', []),
        ("1 < 2", [0, 1, 2, 3]),
        ("false", []),
    ],
)
def test_an_expression_selects_the_rows_that_meet_it(text: str, expected: list[int]) -> None:
    assert chosen(text) == expected


@pytest.mark.parametrize(("before", "after"), [("", "+1"), ("-", ""), ("not ", ""), ("abs(", ")")])
@pytest.mark.parametrize("count", [50, 90, 110, 400, 980])
def test_what_can_be_parsed_can_be_evaluated(before: str, after: str, count: int) -> None:
    text = before * count + "reward" + after * count
    try:
        node = parse(text)
    except ExpressionError as error:
        assert "nested too deeply" in str(error) or "at most 2,000" in str(error)
        assert count > MAX_DEPTH
        return
    columns = {path: column_of([path.value(row) for row in ROWS]) for path in fields_of(node)}
    evaluate(node, columns, len(ROWS))
    assert count < MAX_DEPTH


@pytest.mark.parametrize("link", [" or ", " and "])
def test_long_chains_of_conditions_are_not_nested(link: str) -> None:
    assert chosen(link.join(["calls==2"] * 150)) == [0]


LARGE = 1234567890123456789


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"x == {LARGE}", [0]),
        (f"x != {LARGE}", [1, 2, 3, 4]),
        (f"x in [{LARGE + 1}, 7]", [1, 2]),
        (f"x > {LARGE}", [1]),
        (f"x <= {LARGE}", [0, 2, 3]),
        (f"x == {LARGE}.0", []),
        ("x == 7", [2]),
        ("x == null", [4]),
        ("x - 7 == 0", [2]),
        ("x < 1e18", [2, 3]),
        ("x", [0, 1, 2, 3]),
        (f"2.5 < {LARGE}", [0, 1, 2, 3, 4]),
    ],
)
def test_integers_that_no_float_equals_are_compared_exactly(text: str, expected: list[int]) -> None:
    assert chosen(text, [{"x": LARGE}, {"x": LARGE + 1}, {"x": 7}, {"x": 0.5}, {"x": None}]) == expected


def test_integers_that_floats_represent_exactly_stay_numbers() -> None:
    assert column_of([2**53 - 1, 2**60, None, 0.5]).kind is Kind.NUMBERS
    assert column_of([2**53 + 1, 0.5]).kind is Kind.OBJECTS


def test_values_of_different_types_are_never_equal_and_have_no_order() -> None:
    rows: list[dict[str, Any]] = [{"x": "1"}, {"x": 1}, {"x": True}, {"x": [1]}, {"x": {"a": 1}}, {"x": None}]
    assert chosen("x == 1", rows) == [1, 2]
    assert chosen("x <= 1", rows) == [1, 2]
    assert chosen('x == "1"', rows) == [0]


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ([1, 2.5, None], Kind.NUMBERS),
        ([True, None], Kind.TRUTHS),
        ([True, 1], Kind.OBJECTS),
        (["a", None], Kind.OBJECTS),
        ([None], Kind.OBJECTS),
        ([[1], [2]], Kind.OBJECTS),
    ],
)
def test_a_column_returns_the_values_that_it_was_made_of(found: list[Any], kind: Kind) -> None:
    column = column_of(found)
    assert (column.kind, column.objects()) == (kind, found)
    assert column.missing.tolist() == [value is None for value in found]


@pytest.mark.parametrize("other", [1.5, "text", True, [1], 2**53 + 1])
def test_nan_is_missing_whatever_the_other_values_of_the_column_are(other: Any) -> None:
    column = column_of([float("nan"), other])
    assert column.missing.tolist() == [True, False]
    assert column.objects() == [None, other]


def test_a_number_beyond_the_range_of_floats_is_compared_exactly() -> None:
    rows: list[dict[str, Any]] = [{"x": 10**400}, {"x": 1}]
    assert chosen("x > 1", rows) == [0]
    assert chosen("x + 1 > 0", rows) == [1]


def test_no_rows_select_nothing() -> None:
    assert chosen('reward < 1 and "a" in text and len(parts) in [1]', []) == []
