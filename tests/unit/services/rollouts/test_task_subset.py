"""An input that holds some of the original rows continues their collection; every other input is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Json
from rollyard.services.rollouts.task_subset import subset_of_original
from tests.support.partial_runs import AGENT, check_complete, resume, task, tasks_of, write_lines

INPUTS = [task(0), task(1), task(1), task(2)]
"""The second and the third are the same task."""


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A collection of INPUTS of which only the first rollout is left."""
    path = tmp_path / "rollouts.jsonl"
    resume(write_lines(tmp_path / "input.jsonl", INPUTS), path, 2)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    return path


def problem_of(given: Path, output: Path) -> str:
    subset, problem = subset_of_original(tasks_of(given), RolloutPaths(output), AGENT)
    assert subset is None
    return problem


def test_rows_without_an_index_stand_for_all_duplicates_of_their_task(tmp_path: Path, output: Path) -> None:
    assert resume(write_lines(tmp_path / "some.jsonl", INPUTS[1:2]), output, 2).keys == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_row_with_an_index_stands_for_that_task_alone(tmp_path: Path, output: Path) -> None:
    one = {**INPUTS[2], "_ng_task_index": 2}
    assert resume(write_lines(tmp_path / "some.jsonl", [one, one]), output, 2).keys == [(2, 0), (2, 1)]


def test_an_index_that_contradicts_the_content_is_ignored(tmp_path: Path, output: Path) -> None:
    wrong = {**INPUTS[3], "_ng_task_index": 1}
    assert resume(write_lines(tmp_path / "some.jsonl", [wrong]), output, 2).keys == [(3, 0), (3, 1)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (task(7), "row (2)"),
        ({**INPUTS[0], "_ng_task_index": 0, "seed": 9}, "row (2)"),
        (
            {**INPUTS[0], "responses_create_params": {**INPUTS[0]["responses_create_params"], "top_p": 0.5}},
            "task of row 1 ",
        ),
        ({**INPUTS[0], "agent_ref": {"name": "other"}}, "agent, ids or sampling"),
    ],
    ids=["another task", "an index of a changed row", "other sampling", "another agent"],
)
def test_a_row_that_is_not_of_the_original_input_is_named(
    tmp_path: Path, output: Path, row: Json, problem: str
) -> None:
    assert problem in problem_of(write_lines(tmp_path / "some.jsonl", [INPUTS[0], row]), output)


def test_the_original_input_is_found_beside_the_output_after_the_folder_was_moved(tmp_path: Path, output: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in [*tmp_path.glob("*.json*")]:
        shutil.move(path, moved)
    some = write_lines(tmp_path / "some.jsonl", INPUTS[3:])
    assert resume(some, moved / output.name, 2).keys == [(3, 0), (3, 1)]
    resume(moved / "input.jsonl", moved / output.name, 2)
    check_complete(INPUTS, moved / output.name, 2)


def test_an_original_input_that_changed_cannot_vouch_for_rows(tmp_path: Path, output: Path) -> None:
    some = write_lines(tmp_path / "some.jsonl", INPUTS[:1])
    write_lines(tmp_path / "input.jsonl", INPUTS[:1])
    assert "has changed" in problem_of(some, output)


def test_an_original_input_that_grew_still_vouches_for_its_first_rows(tmp_path: Path, output: Path) -> None:
    write_lines(tmp_path / "input.jsonl", [*INPUTS, task(8)])
    assert resume(write_lines(tmp_path / "some.jsonl", INPUTS[3:]), output, 2).keys == [(3, 0), (3, 1)]
    assert "row (1)" in problem_of(write_lines(tmp_path / "some.jsonl", [task(8)]), output)
