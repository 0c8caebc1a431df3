from __future__ import annotations

import random
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from rollyard.launchers.slurm.launch.yaml_values import dump_yaml, load_yaml, read_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("8", 8),
        ("-1", -1),
        ("+3", 3),
        ("0.5", 0.5),
        ("1.0", 1.0),
        ("1e-5", 1e-5),
        ("1E3", 1000.0),
        ("[0.6, 0.8]", [0.6, 0.8]),
        ("[[1, 2], [3]]", [[1, 2], [3]]),
        ("{a: 1, b: null}", {"a": 1, "b": None}),
        ("007", "007"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("yes", "yes"),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("'007'", "007"),
        ('"1e-5"', "1e-5"),
        ("'it''s'", "it's"),
        ('"a\\nb"', "a\nb"),
        ("", ""),
        (" 5", " 5"),
        ("a: b", "a: b"),
        ("# no comment", "# no comment"),
        ("[INST] hi", "[INST] hi"),
        ("'a' and 'b'", "'a' and 'b'"),
        ("line 1\nline 2\n", "line 1\nline 2\n"),
        ("'line 1\nline 2'", "line 1\nline 2"),
        ('$(touch x) `id` "$HOME" \\', '$(touch x) `id` "$HOME" \\'),
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
        ("ünï 漢字 🎉", "ünï 漢字 🎉"),
    ],
)
def test_a_value_on_the_command_line_has_a_predictable_type(text: str, value: Any) -> None:
    """B12: 007 stayed 7 and 1e-5 a string."""
    found = read_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["[a, b: c: d]", "{a: [}", "[*unknown]", "[!!python/name:os.system ]"])
def test_a_value_in_brackets_that_is_not_yaml_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not valid YAML"):
        read_value(text)


def test_a_duplicate_key_is_refused_instead_of_dropped() -> None:
    with pytest.raises(yaml.YAMLError, match="duplicate key 'a'"):
        load_yaml("a: 1\na: 2\n")


def test_dumped_yaml_is_read_back_exactly_by_both_versions_of_yaml() -> None:
    rng = random.Random(0)
    alphabet = "\\'\"\n\t :#-[]{},&*!|>%@`~ab1.e_\r\x85\u2028é🎉"
    texts = ["".join(rng.choice(alphabet) for _ in range(rng.randint(0, 12))) for _ in range(500)]
    texts += [
        "yes",
        "no",
        "on",
        "y",
        "null",
        "~",
        "007",
        "1e-5",
        "1_0",
        "1:30",
        "2024-01-01",
        ".inf",
        "0x1f",
        "=",
        "<<",
    ]
    tree = {"texts": texts, "numbers": [1, -0.0, 1e-5, 1e300, 10**30, True, None, [[], {}]]}
    dumped = dump_yaml(tree)
    assert load_yaml(dumped) == tree
    assert OmegaConf.to_container(OmegaConf.create(dumped)) == tree
