"""Tests what counts as an expression, and what a wrong one is told."""

from __future__ import annotations

import pytest

from rollyard.records.expression_parser import (
    MAX_LENGTH,
    ComparisonNode,
    Constant,
    ExpressionError,
    Field,
    FieldPath,
    Logical,
    fields_of,
    parse,
    parse_field,
)


def test_a_chain_of_comparisons_means_all_of_them() -> None:
    reward = Field(FieldPath(("reward",)))
    expected = Logical("and", (ComparisonNode("<", Constant(0), reward), ComparisonNode("<", reward, Constant(1))))
    assert parse("0 < reward < 1") == expected


@pytest.mark.parametrize(("python", "json"), [("True", "true"), ("False", "false"), ("None", "null")])
def test_constants_may_be_spelled_as_in_json(python: str, json: str) -> None:
    assert parse(f"success == {json}") == parse(f"success == {python}")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("reward", ("reward",)),
        ("response.usage.output_tokens", ("response", "usage", "output_tokens")),
        ('response["usage"].output_tokens', ("response", "usage", "output_tokens")),
        ("scores[0]", ("scores", 0)),
        ("scores[-1]", ("scores", -1)),
        ('row["my key"]', ("my key",)),
        ('row["class"].name', ("class", "name")),
    ],
)
def test_a_field_is_a_path_of_keys_and_indexes(text: str, parts: tuple[str | int, ...]) -> None:
    assert parse_field(text).parts == parts


def test_a_path_that_begins_with_row_never_names_a_computed_column() -> None:
    assert parse_field("tool_calls").column == "tool_calls"
    assert parse_field("row.tool_calls").column is None


def test_all_fields_of_an_expression_are_found() -> None:
    node = parse('not (a < 1) and (b.c in ["x"] or len(d) + e > 3) and startswith(f, "g")')
    assert [str(path) for path in fields_of(node)] == ["a", "b.c", "d", "e", "f"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("reward = 1", "=="),
        ("reward <", "at the end"),
        ("reward < 1 && turns > 2", "and, or, not"),
        ("reward is None", "== or !="),
        ("row < 1", "`row` alone"),
        ("lenn(text) > 3", " len?"),
        ("open('x')", " abs"),
        ("len() > 3", "len has 0"),
        ("len(x, key=1) > 3", "expected a comparison"),
        ("a[b] > 1", "number or a string"),
        ("a[1:2] > 1", "expected a comparison"),
        ("[x for x in y]", "expected a comparison"),
        ("(lambda: 1)()", "expected a comparison"),
        ("f'{reward}' == 'a'", "expected a comparison"),
        ("b'x' == reward", "expected a comparison"),
        ("reward < 1j", "expected a comparison"),
        ("len(x).y > 1", "expected a field"),
        ("a ** 2 > 1", "expected a comparison"),
        ("reward < 1; turns", "cannot be read"),
        ("a\x00b", "cannot be read"),
        ("x" * (MAX_LENGTH + 1), "at most 2,000"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(text: str, told: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        parse(text)
    assert told in str(refused.value)


def test_a_condition_is_not_a_field() -> None:
    with pytest.raises(ExpressionError, match="not a field"):
        parse_field("reward < 1")


@pytest.mark.parametrize(
    "key", ['a "b"', "a\\", "a\nb", "nul\0", "", "\ud800", "class", "in", "true", "row", "ﬁeld", "a.b", "a,b", "br[0]"]
)
def test_the_name_of_every_key_is_read_as_that_key(key: str) -> None:
    for parts in [(key,), ("outer", key), (key, 0, key)]:
        assert parse_field(str(FieldPath(parts))).parts == parts
