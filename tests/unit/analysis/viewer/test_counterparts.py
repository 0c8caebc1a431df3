"""The rollouts that the page of a rollout offers for a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.analysis.viewer.comparison import MAX_FILES, counterpart_router
from rollyard.records.types import Json
from tests.support.rollout_files import row, solved, write
from tests.support.step_rows import step_rows
from tests.unit.analysis.viewer.opened_runs import get_json, open_index, viewer_client

Found = list[tuple[str, int, int, int]]
ONE = solved(0, 0, True)
REPEATS = [solved(0, repeat, repeat == 3) for repeat in range(4)]
REWARDS = [row(0, repeat, reward) for repeat, reward in enumerate((-3.0, -2.0, 5.0, -9.0))]


async def counterparts_of(folder: Path, files: list[list[Json]], place: str) -> Found:
    index = open_index(*(write(folder / f"{number}.jsonl", rows) for number, rows in enumerate(files)))
    client = viewer_client(index, counterpart_router(index))
    await get_json(client, "/api/runs/0/rollouts/99/9/counterparts", 404)
    found = await get_json(client, f"/api/runs/{place}/counterparts")
    return [(one["kind"], one["run"], one["task"], one["repeat"]) for one in found["counterparts"]]


@pytest.mark.parametrize(
    ("rows", "repeat", "expected"),
    [
        (REPEATS, 0, [("next repeat", 0, 0, 1), ("best repeat", 0, 0, 3)]),
        (REPEATS[:2], 1, [("next repeat", 0, 0, 0)]),
        (REWARDS, 0, [("next repeat", 0, 0, 1), ("best repeat", 0, 0, 2)]),
        ([ONE, solved(1, 0, True)], 0, []),
    ],
    ids=["next and best", "after the last", "without success", "alone"],
)
async def test_the_next_repeat_comes_first_and_the_best_one_second(
    tmp_path: Path, rows: list[Json], repeat: int, expected: Found
) -> None:
    assert await counterparts_of(tmp_path, [rows], f"0/rollouts/0/{repeat}") == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([step_rows({1: 0, 2: 0}, 1), step_rows({2: 0, 1: 0}, 1, first=7)], [("other file", 1, 8, 0)]),
        ([[ONE], [{**ONE, "_ng_task_index": 5}]], [("other file", 1, 5, 0)]),
        ([[ONE], [{**ONE, "_ng_task_index": task} for task in (5, 6)]], []),
    ],
    ids=["by content", "by prompt", "ambiguous prompt"],
)
async def test_the_task_of_another_file_is_found_by_what_it_is(
    tmp_path: Path, files: list[list[Json]], expected: Found
) -> None:
    assert await counterparts_of(tmp_path, files, "0/rollouts/0/0") == expected


async def test_the_task_is_looked_up_in_a_limited_number_of_files(tmp_path: Path) -> None:
    assert len(await counterparts_of(tmp_path, [step_rows({1: 0}, 1)] * 10, "0/rollouts/0/0")) == MAX_FILES
