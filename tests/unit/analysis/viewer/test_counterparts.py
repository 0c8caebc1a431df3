"""The rollouts that the page of a rollout offers for a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.analysis.viewer.comparison import MAX_FILES, counterpart_router
from rollyard.analysis.viewer.library import FileIndex
from rollyard.records.types import Json
from tests.support.rollout_files import row, solved, write
from tests.support.step_rows import step_rows
from tests.unit.analysis.viewer.opened_runs import get_json, viewer_client


async def counterparts_of(folder: Path, files: dict[str, list[Json]], place: str, status: int = 200) -> Any:
    index = FileIndex([(name, write(folder / f"{name}.jsonl", rows)) for name, rows in files.items()])
    index.read_through()
    async with viewer_client(index, counterpart_router(index)) as client:
        found = await get_json(client, f"/api/runs/{place}/counterparts", status)
    if status != 200:
        return found
    return [(one["kind"], one["run"], one["task"], one["repeat"]) for one in found["counterparts"]]


async def test_the_next_repeat_comes_first_and_the_best_one_second(tmp_path: Path) -> None:
    rows = [solved(0, repeat, repeat == 3) for repeat in range(4)]
    found = await counterparts_of(tmp_path, {"a": rows}, "0/rollouts/0/0")
    assert found == [("next repeat", 0, 0, 1), ("best repeat", 0, 0, 3)]


async def test_the_last_repeat_is_followed_by_the_first(tmp_path: Path) -> None:
    rows = [solved(0, repeat, False) for repeat in range(2)]
    assert await counterparts_of(tmp_path, {"a": rows}, "0/rollouts/0/1") == [("next repeat", 0, 0, 0)]


async def test_without_success_the_best_repeat_has_the_highest_reward(tmp_path: Path) -> None:
    rows = [row(0, repeat, reward) for repeat, reward in enumerate((-3.0, -2.0, 5.0, -9.0))]
    found = await counterparts_of(tmp_path, {"a": rows}, "0/rollouts/0/0")
    assert found[-1] == ("best repeat", 0, 0, 2)


async def test_a_task_without_another_repeat_has_no_counterpart(tmp_path: Path) -> None:
    assert await counterparts_of(tmp_path, {"a": [solved(0, 0, True), solved(1, 0, True)]}, "0/rollouts/0/0") == []


async def test_the_task_of_another_file_is_found_by_its_content_and_not_by_its_index(tmp_path: Path) -> None:
    files = {"a": step_rows({1: 0, 2: 0}, 1), "b": step_rows({2: 0, 1: 0}, 1, first=7)}
    assert await counterparts_of(tmp_path, files, "0/rollouts/0/0") == [("other file", 1, 8, 0)]


async def test_without_content_keys_a_unique_prompt_identifies_the_task(tmp_path: Path) -> None:
    files = {"a": [solved(0, 0, True)], "b": [{**solved(0, 0, True), "_ng_task_index": 5}]}
    assert await counterparts_of(tmp_path, files, "0/rollouts/0/0") == [("other file", 1, 5, 0)]


async def test_an_ambiguous_prompt_identifies_no_task(tmp_path: Path) -> None:
    one = solved(0, 0, True)
    files = {"a": [one], "b": [{**one, "_ng_task_index": task} for task in (5, 6)]}
    assert await counterparts_of(tmp_path, files, "0/rollouts/0/0") == []


@pytest.mark.parametrize("count", [1, 9])
async def test_the_task_is_looked_up_in_a_limited_number_of_files(tmp_path: Path, count: int) -> None:
    files = {f"step_{step}": step_rows({1: 0}, 1) for step in range(count + 1)}
    assert len(await counterparts_of(tmp_path, files, "0/rollouts/0/0")) == min(count, MAX_FILES)


async def test_a_rollout_that_does_not_exist_has_no_counterparts(tmp_path: Path) -> None:
    await counterparts_of(tmp_path, {"a": [solved(0, 0, True)]}, "0/rollouts/9/9", 404)
