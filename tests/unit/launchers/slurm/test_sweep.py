"""Sweep files, and values on the command line."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rollyard.launchers.slurm.sweep import dump_yaml, load_yaml, read_sweep, read_value
from rollyard.records.errors import OperatorError


def combinations(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    (tmp_path / "sweep.yaml").write_text(text)
    return [{one.key: one.value for one in found} for found in read_sweep(tmp_path / "sweep.yaml").combinations]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The product in the order of the file, with the last key fastest.
        ("b: [1, 2]\na.c: [x, y]", [{"b": b, "a.c": c} for b in (1, 2) for c in "xy"]),
        # B7: a string was iterated character by character.
        ("m: Qwen/Qwen2.5\nx: [1, 2]\nd: {a: [1]}", [{"m": "Qwen/Qwen2.5", "x": x, "d": {"a": [1]}} for x in (1, 2)]),
        ("m: [&m {a: 1, b: 2}, {<<: *m, b: 3}]", [{"m": {"a": 1, "b": 2}}, {"m": {"a": 1, "b": 3}}]),
        ("x: &x [1]\ny: *x", [{"x": 1, "y": 1}]),
        # B6: lists lost everything after the first comma, null became 'None', booleans Python's True.
        (
            'k: [[1, [a, b]], {c: null}, null, true, \'with "quotes"\', "two\\nlines", 007]',
            [{"k": k} for k in ([1, ["a", "b"]], {"c": None}, None, True, 'with "quotes"', "two\nlines", "007")],
        ),
    ],
)
def test_a_sweep_is_the_product_of_its_values_as_they_are(tmp_path: Path, text: str, expected: list[Any]) -> None:
    assert combinations(tmp_path, text) == expected


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
        ("a: [{b: 1}]\na.b: [2]\n", "sets a and a.b"),
        ("config_path: [x]\n", "expected the path"),
        ("\n".join(f"k{number}: [{', '.join('0123456789')}]" for number in range(5)), "100000 combinations"),
    ],
)
def test_a_file_that_is_not_a_sweep_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """B8: such a file was read as an empty one, and one job without a sweep was submitted."""
    with pytest.raises(OperatorError, match=problem):
        combinations(tmp_path, text)


TYPED = (
    {"true": True, "False": False, "null": None, "~": None, "8": 8, "-1": -1, "+3": 3, "0.5": 0.5, "1.0": 1.0}
    | {"1e-5": 1e-5, "1E3": 1000.0, "[0.6, 0.8]": [0.6, 0.8], "[[1, 2], [3]]": [[1, 2], [3]]}
    | {"{a: 1, b: null}": {"a": 1, "b": None}, "'007'": "007", '"1e-5"': "1e-5", "'it''s'": "it's"}
    | {'"a\\nb"': "a\nb", "'line 1\nline 2'": "line 1\nline 2"}
)
TEXTS = (
    *("007", "1_000", "0x10", "yes", "2024-01-01", "1:30", "", " 5", "a: b", "# no comment", "[INST] hi"),
    *("'a' and 'b'", "line 1\nline 2\n", '$(touch x) `id` "$HOME" \\', "Qwen/Qwen3-4B", "ünï 漢字 🎉"),
)


@pytest.mark.parametrize(("text", "value"), [*TYPED.items(), *zip(TEXTS, TEXTS, strict=True)])
def test_a_value_on_the_command_line_has_a_predictable_type(text: str, value: Any) -> None:
    """B12: 007 stayed 7 and 1e-5 a string."""
    found = read_value(text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("text", ["[a, b: c: d]", "{a: [}", "[*unknown]", "[!!python/name:os.system ]"])
def test_a_value_in_brackets_that_is_not_yaml_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not valid YAML"):
        read_value(text)


def test_dumped_yaml_is_read_back_exactly_by_both_versions_of_yaml() -> None:
    rng = random.Random(0)
    alphabet = "\\'\"\n\t :#-[]{},&*!|>%@`~ab1.e_\r\x85\u2028é🎉"
    texts = ["".join(rng.choice(alphabet) for _ in range(rng.randint(0, 12))) for _ in range(500)]
    texts += ["yes", "no", "on", "y", "null", "~", "007", "1e-5", "1_0", "1:30", "2024-01-01", ".inf", "0x1f"]
    texts += ["=", "<<"]
    tree = {"texts": texts, "numbers": [1, -0.0, 1e-5, 1e300, 10**30, True, None, [[], {}]]}
    dumped = dump_yaml(tree)
    assert load_yaml(dumped) == tree
    assert OmegaConf.to_container(OmegaConf.create(dumped)) == tree
