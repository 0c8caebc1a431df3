from __future__ import annotations

import random
from pathlib import Path

import pytest

from rollyard.analysis.metrics.comparison import difference
from rollyard.analysis.metrics.profile import Run
from rollyard.records.types import Json
from tests.support.rollout_files import grid, load_run, row, solved, write_manifest

SAME_PROMPT = {"responses_create_params": {"input": "Solve the level."}}


def pair(folder: Path, before: list[int], after: list[int], repeats: int = 4) -> tuple[Run, Run]:
    return load_run(folder, grid(before, repeats), "before"), load_run(folder, grid(after, repeats), "after")


def test_the_difference_of_runs_is_the_mean_difference_of_their_tasks_and_the_largest_changes_come_first(
    tmp_path: Path,
) -> None:
    found = difference(*pair(tmp_path, [0, 2, 4, 1], [2, 2, 3, 4]))
    assert found.solve_rate is not None and found.reward is not None
    assert found.reward.mean == found.solve_rate.mean == pytest.approx((0.5 + 0 - 0.25 + 0.75) / 4)
    assert (found.better, found.worse, found.equal, found.sign_test_p) == (2, 1, 1, 1.0)
    assert [(change.task, change.before, change.after) for change in found.gained] == [(3, 0.25, 1.0), (0, 0.0, 0.5)]
    assert [(change.task, change.before, change.after) for change in found.lost] == [(2, 1.0, 0.75)]


def test_differences_between_the_manifests_are_listed(tmp_path: Path) -> None:
    for name, temperature in (("before", 0.8), ("after", 1.0)):
        write_manifest(tmp_path / f"{name}.jsonl", 2, 2, responses_create_params={"temperature": temperature, "n": 1})
    found = difference(*pair(tmp_path, [1, 2], [1, 2], 2))
    assert (found.identity, found.notes) == (["responses_create_params.temperature: 0.8 -> 1.0"], [])


def with_keys(rows: list[Json], base: int = 0) -> list[Json]:
    """Rows with task keys, as the collector writes them, and equal prompts: only the keys identify tasks."""
    return [{**row, **SAME_PROMPT, "_ng_task_key": f"{base + row['_ng_task_index']:016x}"} for row in rows]


def test_tasks_are_paired_by_their_content_regardless_of_their_position(tmp_path: Path) -> None:
    before, after = [0, 2, 4, 1], [2, 2, 3, 3]
    expected = difference(*pair(tmp_path, before, after))
    for prepare in (list, lambda rows: with_keys(rows, base=7)):
        moved = [{**one, "_ng_task_index": (one["_ng_task_index"] - 1) % 4} for one in prepare(grid(after, 4))]
        found = difference(load_run(tmp_path, prepare(grid(before, 4)), "before"), load_run(tmp_path, moved, "after"))
        assert (found.reward, found.solve_rate) == (expected.reward, expected.solve_rate)
        assert [(change.task, change.task_here) for change in found.lost] == [(2, 1)]


def test_only_common_tasks_are_compared_and_counted_in_a_note(tmp_path: Path) -> None:
    sides = (with_keys(grid(counts, 4), base) for base, counts in ((1, [1, 2, 3, 4, 0]), (4, [4, 4, 4])))
    found = difference(*(load_run(tmp_path, own, name) for own, name in zip(sides, "ab", strict=True)))
    assert (found.paired_by, found.tasks, found.only_baseline, found.only_here) == ("content", 2, 3, 1)
    assert "2 tasks" in found.notes[0] and "(5 in a, 3 in b)" in found.notes[0]
    assert found.solve_rate is not None and found.solve_rate.mean == pytest.approx((0 + 1) / 2)


@pytest.mark.parametrize("second", ["other", None])
def test_runs_with_indistinguishable_tasks_are_not_compared(tmp_path: Path, second: str | None) -> None:
    write_manifest(tmp_path / "a.jsonl", 3, 4)
    if second:
        write_manifest(tmp_path / "b.jsonl", 3, 4, input_sha256=second)
    rows = ([{**one, **SAME_PROMPT} for one in grid(counts, 4)] for counts in ([1, 2, 3], [3, 4, 4]))
    found = difference(*(load_run(tmp_path, own, name) for own, name in zip(rows, "ab", strict=True)))
    assert (found.tasks, found.reward, found.solve_rate, found.sign_test_p) == (0, None, None, None)
    assert ("their inputs differ" if second else "no manifest shows") in found.notes[0]


def test_a_task_whose_rollouts_have_different_keys_is_not_paired(tmp_path: Path) -> None:
    rows = with_keys(grid([1, 2], 2), base=1)
    mixed = [{**row, "_ng_task_key": f"{number:016x}"} for number, row in enumerate(rows)]
    assert difference(load_run(tmp_path, rows, "a"), load_run(tmp_path, mixed, "b")).tasks == 0


def test_the_sign_test_excludes_tasks_with_different_numbers_of_rollouts(tmp_path: Path) -> None:
    # One policy, which solves each task with probability 0.9: a single rollout looks better than 16 far more often
    # than it looks worse.
    dice = random.Random(2)
    rows = (
        [solved(task, at, dice.random() < 0.9) for task in range(200) for at in range(16 if task < whole else 1)]
        for whole in (200, 50)
    )
    found = difference(*(load_run(tmp_path, own, name) for own, name in zip(rows, "ab", strict=True)))
    assert found.better > 2 * found.worse
    assert found.sign_test_tasks == 50 and found.sign_test_p is not None and found.sign_test_p > 0.05
    assert any("150 of 200 tasks" in note for note in found.notes)


def test_a_difference_of_zero_on_every_task_is_bounded_by_the_number_of_tasks(tmp_path: Path) -> None:
    for before, after in ((4, 4), (0, 0), (0, 4)):
        found = difference(*pair(tmp_path, [before] * 20, [after] * 20)).solve_rate
        assert found is not None and found.low is not None
        least = 1 + found.low if before == after else (1 + found.low) / 2
        assert least**20 == pytest.approx(0.025 if before == after else 0.05)


def test_rewards_of_a_mixture_are_compared_per_dataset(tmp_path: Path) -> None:
    def mixed(**rewards: float) -> list[Json]:
        return [
            row(task, 0, rewards[name] * task, dataset_name=name, agent_ref={"name": name})
            for task, name in enumerate(["rooms", "sums"] * 3)
        ]

    found = difference(*(load_run(tmp_path, mixed(rooms=a, sums=b), str(a)) for a, b in ((5.0, 0.1), (7.0, 0.2))))
    assert (found.tasks, found.reward) == (6, None)
    datasets = [(one.name, one.tasks, round(one.reward.mean, 9)) for one in found.datasets]
    assert datasets == [("rooms", 3, 4.0), ("sums", 3, 0.3)]


def test_without_success_tasks_are_compared_by_their_rewards(tmp_path: Path) -> None:
    rows = ([row(task, 0, reward) for task, reward in enumerate(own)] for own in ([5.0] * 3, [7.0, 5.0, 1.0]))
    found = difference(*(load_run(tmp_path, own, name) for own, name in zip(rows, "ab", strict=True)))
    assert (found.outcome, found.solve_rate) == ("mean reward", None)
    assert (found.better, found.worse, found.equal) == (1, 1, 1)
