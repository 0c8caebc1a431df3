"""CPU time of a verdict on texts that are long and hard to search."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import pytest

from rollyard.resources_servers.ifeval.app import outcome
from rollyard.resources_servers.ifeval.instruction import Instruction, instruction
from tests.unit.resources_servers.answers.grading import DATA, rows_of

NEGLIGIBLE_S = 0.002
ROWS = rows_of(DATA / "ifeval" / "input_data.jsonl")
HARD: dict[str, Callable[[int], str]] = {
    "dots": lambda size: "." * size + "x",
    "marks": lambda size: ".)" * (size // 2) + "x",
    "initials": lambda size: "p.\np." * (size // 5),
    "numbers": lambda size: "1. " * (size // 3),
    "abbreviations": lambda size: "U.S. " * (size // 5),
    "spaced dots": lambda size: ". " * (size // 2),
    "ideographic dots": lambda size: "。a" * (size // 2),
    "labels": lambda size: "1." * (size // 2) + " x",
    "stars": lambda size: "*" * size + "x",
    "brackets": lambda size: "[" * size + "]",
    "titles": lambda size: ">>" + "<<x" * (size // 3),
    "blanks": lambda size: "x" + " " * size + "x",
    "lines": lambda size: "x" + "\n" * size + "x",
    "quotes": lambda size: "A's" * (size // 3) + "'" * size,
    "accents": lambda size: "e" + "\u0301" * size,
    "emoji": lambda size: "😀" * size,
    "fences": lambda size: "```json" * (size // 7),
    "objects": lambda size: '{"a":' * (size // 5),
    "one word": lambda size: "x" * size,
    "addresses": lambda size: "a@b" * (size // 3),
    "dividers": lambda size: "a\n***\n" * (size // 6),
    "sections": lambda size: "SECTION 1" * (size // 9),
}


@pytest.mark.parametrize("text", list(HARD))
def test_the_cost_of_a_verdict_is_linear_in_the_text(text: str) -> None:
    kwargs_by_kind = {
        kind: kwargs for row in ROWS for kind, kwargs in zip(row["instruction_id_list"], row["kwargs"], strict=True)
    }
    for kind, kwargs in kwargs_by_kind.items():
        checked = instruction(kind, kwargs)
        if _cost(kind, checked, HARD[text](8_000)) > 30 * NEGLIGIBLE_S:
            small, large = (
                min(_cost(kind, checked, f"{HARD[text](size)}{number}") for number in range(2))  # cached by text
                for size in (1_000, 8_000)
            )
            assert large < 30 * max(small, NEGLIGIBLE_S), kind  # quadratic: 64


def _cost(kind: str, checked: Instruction, text: str) -> float:
    """CPU seconds of a verdict."""
    started = process_time()
    outcome(kind, checked, text)
    return process_time() - started
