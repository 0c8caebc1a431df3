"""What was learned and forgotten between two runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.analysis.metrics.run_pair import PairLevel, TaskChanges, compare_runs, fisher_exact
from tests.support.rollout_files import load_run, row
from tests.support.step_rows import step_rows


def test_tasks_are_learned_and_forgotten_by_content_whatever_their_index(tmp_path: Path) -> None:
    first = load_run(tmp_path, step_rows({1: 0, 2: 4, 3: 2}), "a")
    second = load_run(tmp_path, step_rows({3: 2, 2: 1, 1: 3}, first=5), "b")
    found = TaskChanges.of(first, second)
    [learned], [forgotten] = found.listed("learned").tolist(), found.listed("forgotten").tolist()
    assert found.by == "content" and found.only == (0, 0)
    assert (found.at(learned).task, found.at(learned).task_in_second) == (0, 7)
    assert (found.at(forgotten).first, found.at(forgotten).second) == (1.0, 0.25)


def test_tasks_of_only_one_run_are_counted(tmp_path: Path) -> None:
    first = load_run(tmp_path, step_rows({1: 0, 2: 4, 3: 2, 4: 0, 9: 1}), "a")
    second = load_run(tmp_path, step_rows({1: 4, 2: 0, 3: 2, 4: 1}), "b")
    found = TaskChanges.of(first, second)
    assert found.only == (1, 0)


def test_the_difference_is_that_of_ng_compare(tmp_path: Path) -> None:
    first = load_run(tmp_path, step_rows({task: task % 4 for task in range(12)}), "a")
    second = load_run(tmp_path, step_rows({task: (task * 3) % 5 for task in range(12)}), "b")
    assert TaskChanges.of(first, second).difference == compare_runs(first, second, [], PairLevel()).differences[0]


def test_runs_without_a_common_task_say_why(tmp_path: Path) -> None:
    found = TaskChanges.of(load_run(tmp_path, step_rows({1: 1}), "a"), load_run(tmp_path, step_rows({2: 1}), "b"))
    assert "in common" in found.why_not and found.listed("all").tolist() == []


def test_without_success_mean_rewards_are_compared(tmp_path: Path) -> None:
    runs = [load_run(tmp_path, [row(0, 0, value, _ng_task_key="0" * 15 + "1")], str(value)) for value in (2.0, 5.0)]
    found = TaskChanges.of(*runs)
    assert (found.metric, found.at(0).first, found.at(0).second, found.at(0).p) == ("reward", 2.0, 5.0, None)


@pytest.mark.parametrize(("table", "p"), [((0, 4, 4, 4), 2 / 70), ((1, 4, 1, 4), 1.0), ((0, 8, 6, 8), 0.006993006993)])
def test_fishers_exact_test_agrees_with_its_definition(table: tuple[int, int, int, int], p: float) -> None:
    assert fisher_exact(*table) == pytest.approx(p)
