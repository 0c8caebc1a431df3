from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.slurm.launch.sweep import read_sweep
from rollyard.records.errors import OperatorError


def combinations(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return [{one.key: one.value for one in found} for found in read_sweep(path).combinations]


def test_the_combinations_are_the_product_in_the_order_of_the_file_with_the_last_key_fastest(tmp_path: Path) -> None:
    assert combinations(tmp_path, "b: [1, 2]\na.c: [x, y]\n") == [
        {"b": 1, "a.c": "x"},
        {"b": 1, "a.c": "y"},
        {"b": 2, "a.c": "x"},
        {"b": 2, "a.c": "y"},
    ]


def test_a_single_value_is_one_value(tmp_path: Path) -> None:
    """B7: a string was iterated character by character."""
    found = combinations(tmp_path, "generation.model_name: Qwen/Qwen2.5-Math-7B\nx: [1, 2]\nm: {a: [1, 2]}\n")
    assert [one["generation.model_name"] for one in found] == ["Qwen/Qwen2.5-Math-7B"] * 2
    assert found[0]["m"] == {"a": [1, 2]}


def test_anchors_and_merged_mappings_are_read(tmp_path: Path) -> None:
    found = combinations(tmp_path, "m: [&m {a: 1, b: 2}, {<<: *m, b: 3}]\nx: &x [1]\ny: *x\n")
    assert [one["m"] for one in found] == [{"a": 1, "b": 2}, {"a": 1, "b": 3}]
    assert found[0]["y"] == 1


def test_every_yaml_value_is_kept_as_it_is(tmp_path: Path) -> None:
    """B6: lists lost everything after the first comma, null became 'None', booleans Python's True."""
    values = combinations(tmp_path, 'k: [[1, [a, b]], {c: null}, null, true, \'with "quotes"\', "two\\nlines", 007]\n')
    assert [one["k"] for one in values] == [
        [1, ["a", "b"]],
        {"c": None},
        None,
        True,
        'with "quotes"',
        "two\nlines",
        "007",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("- 1\n", "contains a list"),
        ("a: [1\n", "is not YAML"),
        ("a: []\n", "empty list"),
        ("{}", "has no keys"),
        ("1: [2]\n", "1 is not a key"),
        ("'a b': [2]\n", "'a b' is not a key"),
        ("a: 1\na: 2\n", "duplicate key"),
        ("a: &a [1, *a]\n", "an alias"),
        ("a: [{b: 1}]\na.b: [2]\n", "sets a and a.b"),
        ("config_path: [x]\n", "expected the path"),
        ("\n".join(f"k{number}: [{', '.join('0123456789')}]" for number in range(5)), "100000 combinations"),
    ],
)
def test_a_file_that_is_not_a_sweep_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """B8: such a file was read as an empty one, and one job without a sweep was submitted."""
    with pytest.raises(OperatorError, match=problem):
        combinations(tmp_path, text)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """B8: a mistyped --sweep submitted one job without a sweep."""
    with pytest.raises(OperatorError, match="No such file"):
        read_sweep(tmp_path / "absent.yaml")
