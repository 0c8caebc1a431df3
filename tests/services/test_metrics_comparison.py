from __future__ import annotations

from pathlib import Path

import pytest

from services.metrics.comparison import difference
from services.metrics.loading import load
from services.metrics.profile import Run
from tests.services.rollout_files import grid, manifest, row, run_of, write


def pair(folder: Path, before: list[int], after: list[int], repeats: int = 4) -> tuple[Run, Run]:
    return run_of(folder, grid(before, repeats), "before"), run_of(folder, grid(after, repeats), "after")


def test_a_difference_is_the_mean_of_the_tasks_differences(tmp_path: Path) -> None:
    found = difference(*pair(tmp_path, [0, 2, 4, 1], [2, 2, 3, 3]))
    assert found.solve_rate is not None and found.reward is not None
    assert found.solve_rate.mean == pytest.approx((0.5 + 0 - 0.25 + 0.5) / 4)
    assert found.reward.mean == found.solve_rate.mean  # their rewards are 1 and 0
    assert (found.better, found.worse, found.equal) == (2, 1, 1)
    assert found.sign_test_p == 1.0


def test_the_tasks_that_changed_most_are_named(tmp_path: Path) -> None:
    found = difference(*pair(tmp_path, [0, 2, 4, 1], [2, 2, 3, 4]))
    assert [(change.task, change.before, change.after) for change in found.gained] == [(3, 0.25, 1.0), (0, 0.0, 0.5)]
    assert [(change.task, change.before, change.after) for change in found.lost] == [(2, 1.0, 0.75)]


def test_pairing_by_task_sees_a_small_gain_that_hard_and_easy_tasks_hide(tmp_path: Path) -> None:
    before, after = pair(tmp_path, [0, 4, 8, 12, 14, 2, 9, 6], [1, 5, 9, 13, 16, 3, 10, 7], repeats=16)
    found = difference(before, after)
    assert found.solve_rate is not None and found.solve_rate.low is not None
    assert found.solve_rate.low > 0
    assert before.profile.solved is not None and after.profile.solved is not None
    high, low = before.profile.solved.rate.high, after.profile.solved.rate.low
    assert high is not None and low is not None
    assert high > low  # the two runs' own intervals overlap


def test_the_second_run_against_the_first_is_the_first_against_the_second_turned_round(tmp_path: Path) -> None:
    before, after = pair(tmp_path, [0, 2, 4, 1], [2, 2, 3, 3])
    there, back = difference(before, after), difference(after, before)
    assert there.reward is not None and back.reward is not None
    assert there.reward.mean == -back.reward.mean
    assert (there.better, there.worse) == (back.worse, back.better)
    assert there.gained[0].before == back.lost[0].after


def test_tasks_of_one_run_only_are_left_out_and_counted(tmp_path: Path) -> None:
    before = run_of(tmp_path, [row(task, 0, 0.0) for task in (0, 1, 2)], "before")
    after = run_of(tmp_path, [row(task, 0, 1.0) for task in (1, 2, 3, 4)], "after")
    found = difference(before, after)
    assert (found.tasks, found.only_baseline, found.only_here) == (2, 1, 2)


def test_runs_without_a_common_task_have_nothing_to_compare(tmp_path: Path) -> None:
    found = difference(run_of(tmp_path, [row(0, 0, 1.0)], "a"), run_of(tmp_path, [row(1, 0, 1.0)], "b"))
    assert found.reward is None
    assert found.notes == ["Nothing to compare: they have no task in common."]


def test_an_empty_run_has_nothing_to_compare(tmp_path: Path) -> None:
    assert difference(run_of(tmp_path, [], "a"), run_of(tmp_path, [row(1, 0, 1.0)], "b")).tasks == 0


def test_what_differs_between_the_manifests_is_listed(tmp_path: Path) -> None:
    runs = []
    for name, temperature in (("a", 0.8), ("b", 1.0)):
        path = write(tmp_path / f"{name}.jsonl", grid([1, 2], 2))
        manifest(path, 2, 2, responses_create_params={"temperature": temperature, "top_p": 1})
        runs.append(load(path))
    found = difference(*runs)
    assert found.identity == ["responses_create_params.temperature: 0.8 -> 1.0"]
    assert found.notes == []


@pytest.mark.parametrize(("second", "said"), [("other", "Their inputs differ"), (None, "no manifest says")])
def test_doubtful_pairs_of_tasks_are_said(tmp_path: Path, second: str | None, said: str) -> None:
    paths = [write(tmp_path / f"{name}.jsonl", grid([1], 2)) for name in ("a", "b")]
    manifest(paths[0], 1, 2)
    if second:
        manifest(paths[1], 1, 2, input_sha256=second)
    assert said in difference(load(paths[0]), load(paths[1])).notes[0]


def test_without_success_tasks_are_compared_by_their_rewards(tmp_path: Path) -> None:
    before = run_of(tmp_path, [row(task, 0, 5.0) for task in range(3)], "before")
    after = run_of(tmp_path, [row(task, 0, reward) for task, reward in enumerate([7.0, 5.0, 1.0])], "after")
    found = difference(before, after)
    assert (found.outcome, found.solve_rate) == ("mean reward", None)
    assert (found.better, found.worse, found.equal) == (1, 1, 1)
