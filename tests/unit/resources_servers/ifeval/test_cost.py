"""CPU time of a verdict on texts that are long and hard to search."""

from __future__ import annotations

from time import process_time

import pytest

from rollyard.resources_servers.ifeval.app import outcome
from rollyard.resources_servers.ifeval.instruction import Instruction, instruction
from tests.unit.resources_servers.answers.grading import DATA, rows_of

NEGLIGIBLE_S = 0.002
ROWS = rows_of(DATA / "ifeval" / "input_data.jsonl")
HARD = {
    "dots": ("", ".", "x"), "marks": ("", ".)", "x"), "initials": ("", "p.\np.", ""), "numbers": ("", "1. ", ""),
    "abbreviations": ("", "U.S. ", ""), "spaced dots": ("", ". ", ""), "ideographic dots": ("", "。a", ""),
    "labels": ("", "1.", " x"), "stars": ("", "*", "x"), "brackets": ("", "[", "]"), "titles": (">>", "<<x", ""),
    "blanks": ("x", " ", "x"), "lines": ("x", "\n", "x"), "quotes": ("A's" * 2_000, "'", ""), "emoji": ("", "😀", ""),
    "accents": ("e", "\u0301", ""), "fences": ("", "```json", ""), "objects": ("", '{"a":', ""),
    "one word": ("", "x", ""), "addresses": ("", "a@b", ""),
    "dividers": ("", "a\n***\n", ""), "sections": ("", "SECTION 1", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HARD)
def test_the_cost_of_a_verdict_is_linear_in_the_text(name: str) -> None:
    def text(size: int) -> str:
        lead, piece, tail = HARD[name]
        return lead + piece * (size // len(piece)) + tail

    items = [item for row in ROWS for item in zip(row["instruction_id_list"], row["kwargs"], strict=True)]
    for kind, kwargs in dict(items).items():
        checked = instruction(kind, kwargs)
        if _cost(kind, checked, text(8_000)) > 30 * NEGLIGIBLE_S:
            small, large = (
                min(_cost(kind, checked, f"{text(size)}{number}") for number in range(2))  # cached by text
                for size in (1_000, 8_000)
            )
            assert large < 30 * max(small, NEGLIGIBLE_S), kind  # quadratic: 64


def _cost(kind: str, checked: Instruction, text: str) -> float:
    """CPU seconds of a verdict."""
    started = process_time()
    outcome(kind, checked, text)
    return process_time() - started
