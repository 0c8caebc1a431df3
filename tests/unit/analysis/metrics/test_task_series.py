"""Tasks over the steps of a series, and the figures of each step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.run_pair import REWARD, SOLVE_RATE
from rollyard.analysis.metrics.training_steps import (
    ZERO_VARIANCE,
    TaskSeries,
    drawn_names,
    evenly,
    learned_at,
    step_summary,
)
from tests.support.rollout_files import grid, load_run, random_rows, row, solved, write_manifest
from tests.support.step_rows import step_rows


def series_of(*runs: Run) -> TaskSeries:
    return TaskSeries.of([step_summary(run, {}) for run in runs])


def test_the_figures_are_those_of_the_report(tmp_path: Path) -> None:
    run = load_run(tmp_path, random_rows(20, 4))
    found, profile = step_summary(run, {}).figures, run.profile
    assert profile.solved and profile.rewards and profile.tokens.output and profile.tasks
    assert profile.tool_calls and profile.turns
    assert found[SOLVE_RATE] == profile.solved.rate and found[REWARD] == profile.rewards.mean
    assert found["output_tokens"].mean == profile.tokens.output.mean
    assert found["tool_calls"].mean == profile.tool_calls.mean and found["turns"].mean == profile.turns.mean
    zero = profile.tasks.zero_variance
    assert found[ZERO_VARIANCE] == zero.share


def test_tasks_are_paired_by_content_and_never_by_index(tmp_path: Path) -> None:
    before = load_run(tmp_path, step_rows({7: 1, 8: 4}), "a")
    after = load_run(tmp_path, step_rows({8: 0, 7: 3}), "b")
    found = series_of(before, after)
    assert found.by == "content"
    assert dict(zip(map(tuple, found.task.tolist()), found.solve_rate.tolist(), strict=True)) == {
        (0, 1): [0.25, 0.75],
        (1, 0): [1.0, 0.0],
    }


def test_without_content_keys_the_same_input_pairs_tasks_by_index(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_manifest(tmp_path / f"{name}.jsonl", 2, 2)
    found = series_of(load_run(tmp_path, grid([0, 1], 2), "a"), load_run(tmp_path, grid([2, 1], 2), "b"))
    assert (found.by, found.solve_rate.tolist()) == ("index", [[0.0, 1.0], [0.5, 0.5]])


def test_tasks_that_cannot_be_identified_are_not_paired(tmp_path: Path) -> None:
    same = {"responses_create_params": {"input": "the same"}}
    rows = [{**one, **same} for one in grid([0, 1], 2)]
    found = series_of(load_run(tmp_path, rows, "a"), load_run(tmp_path, rows, "b"))
    assert len(found) == 0 and "_ng_task_key" in found.why_not
    assert found.order("change", found.mean).tolist() == []


def test_a_step_without_a_task_has_no_value_for_it(tmp_path: Path) -> None:
    found = series_of(load_run(tmp_path, step_rows({1: 4, 2: 0}), "a"), load_run(tmp_path, step_rows({1: 0}), "b"))
    assert np.isnan(found.solve_rate[1, 1]) and found.task[1, 1] == -1


def test_sorting_by_change_puts_the_largest_loss_first_and_tasks_of_one_step_last(tmp_path: Path) -> None:
    before = load_run(tmp_path, step_rows({1: 4, 2: 0, 3: 2}), "a")
    after = load_run(tmp_path, step_rows({1: 0, 2: 4}), "b")
    found = series_of(before, after)
    assert found.label[found.order("change", found.solve_rate)].tolist() == [0, 1, 2]
    assert found.label[found.order("-change", found.solve_rate)].tolist() == [1, 0, 2]


def test_a_task_is_learned_from_the_step_on_after_which_it_is_never_below_one_half() -> None:
    nan = np.nan
    values = np.array([[0, 0.6, 0.4, 0.5, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [0, 0, nan, 0.5, nan], [nan] * 5])
    assert np.array_equal(learned_at(values), [3, 0, nan, 3, nan], equal_nan=True)


def test_columns_are_spread_evenly_with_both_ends() -> None:
    assert evenly(3, 5) == [0, 1, 2] and evenly(101, 5) == [0, 25, 50, 75, 100]


def test_attributes_of_tasks_are_not_drawn_but_results_and_parts_of_the_reward_are(tmp_path: Path) -> None:
    rows = [solved(task, repeat, True) for task in range(3) for repeat in range(2)]
    run = load_run(tmp_path, rows)
    numbers = {
        "seed": np.repeat([5.0, 6.0, 7.0], 2),
        "tries": np.array([1.0, 2, 1, 1, 1, 1]),
        "reward_components.format": np.ones(6),
    }
    found = drawn_names({0: step_summary(run, numbers)})
    assert "seed" not in found and "tries" in found and found.index("reward_components.format") == 2


def test_a_series_without_success_has_mean_rewards(tmp_path: Path) -> None:
    runs = [load_run(tmp_path, [row(0, 0, reward), row(0, 1, -3.0)], str(reward)) for reward in (2.0, 5.0)]
    found = series_of(*runs)
    assert not found.has_solved and found.mean.tolist() == [[-0.5, 1.0]]


def test_steps_are_compared_by_rewards_if_solved_is_undefined_in_one_of_them(tmp_path: Path) -> None:
    graded = [{**one, "reward": 2.5} for one in step_rows({1: 4, 2: 0})]
    for one in graded:
        one.pop("success", None)
    found = series_of(load_run(tmp_path, step_rows({1: 4, 2: 0}), "a"), load_run(tmp_path, graded, "b"))
    assert not np.isnan(found.solve_rate[:, 0]).any() and np.isnan(found.solve_rate[:, 1]).all()
    assert not found.has_solved
