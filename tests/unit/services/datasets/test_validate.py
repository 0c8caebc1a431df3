"""Validation: invalid rows are reported by line, and so is overlap with another dataset."""

from __future__ import annotations

from pathlib import Path

from rollyard.records.types import Json
from rollyard.services.datasets.validate import validate
from tests.unit.services.datasets.files import row, rows, write_rows


def test_every_invalid_row_is_reported_by_its_line_and_valid_rows_are_counted(tmp_path: Path) -> None:
    lines: list[Json | bytes] = [
        row("fine"),
        b"",
        b"{broken",
        b"[1]",
        {"messages": []},
        row("fine too", agent_ref={"name": 3}),
    ]
    (found,) = validate([write_rows(tmp_path / "rows.jsonl", lines)])
    assert (found.rows, found.problems) == (1, 4)
    assert [(row.line, row.problem.split(" ")[0]) for row in found.first_problems] == [
        (3, "is"),
        (4, "is"),
        (5, "has"),
        (6, "agent_ref"),
    ]


def test_duplicate_tasks_are_found_regardless_of_id_and_agent(tmp_path: Path) -> None:
    first_file = write_rows(tmp_path / "one.jsonl", [row("a", id=1), row("b"), row("a", id=2, agent_ref={"name": "x"})])
    second_file = write_rows(tmp_path / "two.jsonl", [row("c"), row("b", prompt_id="other")])
    first, second = validate([first_file, second_file])
    assert [(found.line, found.first_line) for found in first.first_duplicates] == [(3, 1)]
    assert [(found.line, Path(found.path).name, found.first_line) for found in second.first_duplicates] == [
        (2, "one.jsonl", 2)
    ]


def test_overlap_with_a_test_set_is_counted_by_task_and_by_question(tmp_path: Path) -> None:
    train = write_rows(
        tmp_path / "train.jsonl", [row("2+2?", gold="4"), row(" What is 2 + 3?\n", gold="5."), row("9?", gold="9")]
    )
    test = write_rows(
        tmp_path / "test.jsonl", [row("2+2?", gold="4", id="t"), row("what is $2+3$", gold="5"), row("7?", gold="7")]
    )
    (found,) = validate([train], [test])
    assert found.overlap == {"row": 1, "id": 0, "question": 2}
    assert [(match.kind, match.line) for match in found.first_overlap] == [("row", 1), ("question", 1), ("question", 2)]


def test_a_prompt_shared_by_all_rows_is_not_overlap(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", [row("play", seed=seed) for seed in range(3)])
    test = write_rows(tmp_path / "test.jsonl", [row("play", seed=seed) for seed in range(10, 13)])
    (found,) = validate([train], [test])
    assert not any(found.overlap.values())


def test_prompt_lengths_agents_and_keys_are_counted(tmp_path: Path) -> None:
    lines = [*rows("ab", 2), row("abcdef", agent_ref={"name": "x"}, gold=1)]
    (found,) = validate([write_rows(tmp_path / "rows.jsonl", lines)])
    assert found.prompt_characters is not None
    assert (found.prompt_characters.min, found.prompt_characters.max) == (3, 6)
    assert found.agents == {"": 2, "x": 1}
    assert found.keys == {"responses_create_params": 3, "prompt_id": 2, "agent_ref": 1, "gold": 1}


def test_repeated_ids_within_a_file_are_reported(tmp_path: Path) -> None:
    first_file = write_rows(tmp_path / "one.jsonl", [row("a", id=1), row("b", id=2), row("c", id="1"), row("d")])
    second_file = write_rows(tmp_path / "two.jsonl", [row("e", id=1)])
    first, second = validate([first_file, second_file])
    (repeated,) = first.first_repeated_ids
    assert repeated.line == 3 and "('1')" in repeated.problem
    assert (first.repeated_ids, second.repeated_ids) == (1, 0)


def test_only_the_first_20_problems_of_a_file_are_listed(tmp_path: Path) -> None:
    (found,) = validate([write_rows(tmp_path / "rows.jsonl", [b"{"] * 1000)])
    assert (found.problems, len(found.first_problems)) == (1000, 20)
