from __future__ import annotations

import math
from typing import Any

import pytest
from omegaconf import OmegaConf

from rollyard.records.errors import OperatorError
from rollyard.services.config.overrides import apply, parse_overrides


def value_of(text: str) -> Any:
    (override,) = parse_overrides([text])
    return override.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=[x,2,y/z.yaml]", ["x", 2, "y/z.yaml"]),
        ("a=[]", []),
        ("a=[[1,2],{k: v}]", [[1, 2], {"k": "v"}]),
        ("a={k: v, n: 1}", {"k": "v", "n": 1}),
        ("a={k: {n: [null, true]}}", {"k": {"n": [None, True]}}),
        ("a={}", {}),
        ("a=null", None),
        ("a=true", True),
        ("a=False", False),
        ("a=-1", -1),
        ("a=0.8", 0.8),
        ("a=1e-3", 0.001),
        ("a=inf", math.inf),
        ("a=", ""),
        ("a='x, y'", "x, y"),
        ('a="q=1"', "q=1"),
        (r"a='it\'s'", "it's"),
        ("a='5'", "5"),
        ("a='null'", "null"),
        ("a=['5',5]", ["5", 5]),
    ],
)
def test_a_value_is_parsed_into_plain_python(text: str, value: Any) -> None:
    found = value_of(text)
    assert found == value and type(found) is type(value)


UNQUOTED = ["Qwen/Qwen3-4B:latest", "org/model-v1.2_x@main", "http://127.0.0.1:8000/v1", "/data/rows.jsonl"]
UNQUOTED += ["${policy_base_url}", "2024-01-01", "007", "a b c"]


@pytest.mark.parametrize("value", UNQUOTED)
def test_an_unquoted_value_with_special_characters_is_the_text_typed(value: str) -> None:
    assert value_of(f"+a={value}") == value


@pytest.mark.parametrize("value", ["http://h:8/v1?x=y&z=1", "s3://b/k=v", "größe", "x#y", "a, b", "(", "{not: a dict"])
def test_a_quoted_value_may_contain_any_character(value: str) -> None:
    assert value_of(f"+a='{value}'") == value


@pytest.mark.parametrize("text", ["a=b,c", "a=range(1,3)", "a=choice(1,2)", "a=glob(*)", "a=interval(0,1)"])
def test_a_sweep_is_rejected_with_the_syntax_of_a_list(text: str) -> None:
    with pytest.raises(OperatorError) as raised:
        parse_overrides([text])
    assert text in str(raised.value) and "[a,b]" in str(raised.value)


@pytest.mark.parametrize("text", ["a", "a=[", "a=x=y", "--verbose", "a={k", "a='open", "", "=3"])
def test_an_invalid_argument_is_named(text: str) -> None:
    with pytest.raises(OperatorError) as raised:
        parse_overrides(["+fine=1", text])
    assert repr(text) in str(raised.value)


def applied(tree: dict[str, Any], *texts: str) -> Any:
    config = OmegaConf.create(tree)
    apply(config, parse_overrides(texts))
    return OmegaConf.to_container(config)


@pytest.mark.parametrize(
    ("tree", "texts", "expected"),
    [
        ({"a": 1}, ["a=2", "+a=4", "++a=3"], {"a": 3}),
        ({}, ["+a.b.c=1"], {"a": {"b": {"c": 1}}}),
        ({"a": {"b": 1, "c": 2}}, ["a.b=5"], {"a": {"b": 5, "c": 2}}),
        ({"a": {"b": 1, "c": 2}}, ["a={b: 5}"], {"a": {"b": 5, "c": 2}}),
        ({"a": [1, 2, 3]}, ["a=[9]"], {"a": [9]}),
        ({"a": {"b": 1, "c": 2}, "d": 3}, ["~a.b", "~d"], {"a": {"c": 2}}),
    ],
)
def test_later_overrides_win_mappings_are_merged_and_lists_replaced(tree: Any, texts: list[str], expected: Any) -> None:
    assert applied(tree, *texts) == expected


@pytest.mark.parametrize("text", ["~a.c", "~x", "~a.b.c"])
def test_deleting_a_missing_key_is_rejected(text: str) -> None:
    with pytest.raises(OperatorError, match="does not exist"):
        applied({"a": {"b": 1}}, text)
