from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.profile import histogram
from rollyard.records.types import Json
from tests.support.rollout_files import grid, load_run, random_rows, row, solved, write, write_failures, write_manifest


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """The rows of `varied(20, 8)` as a pandas table."""
    rows = random_rows(20, 8)
    table = pd.DataFrame([{k: row.get(k) for k in ("_ng_task_index", "reward", "success")} for row in rows])
    table["reward"] = table.reward.round(9)  # sums of tenths are read as such
    outputs = [row["response"]["output"] for row in rows]
    table["calls"] = [sum(item["type"] == "function_call" for item in output) for output in outputs]
    return table


def test_rewards_calls_and_success_rate_match_pandas(tmp_path: Path, table: pd.DataFrame) -> None:
    profile = load_run(tmp_path, random_rows(20, 8)).profile
    rewards, calls, success = profile.rewards, profile.tool_calls, profile.solved
    assert rewards is not None and calls is not None and success is not None
    assert success.rollouts == int(table.success.sum())
    assert success.rate.mean == table.success.mean()
    assert (rewards.min, rewards.max, rewards.median) == (
        table.reward.min(),
        table.reward.max(),
        table.reward.median(),
    )
    assert rewards.mean.mean == pytest.approx(table.reward.mean(), rel=1e-15)
    assert rewards.std == pytest.approx(table.reward.std(), rel=1e-13)
    assert (calls.mean, calls.min, calls.max) == (table.calls.mean(), table.calls.min(), table.calls.max())
    assert calls.correlation == pytest.approx(table.calls.corr(table.reward), rel=1e-12)


def test_groups_by_tool_calls_reward_and_task_match_pandas(tmp_path: Path, table: pd.DataFrame) -> None:
    run = load_run(tmp_path, random_rows(20, 8))
    calls, rewards = run.profile.tool_calls, run.profile.rewards
    assert calls is not None and rewards is not None and run.by_task is not None
    by_calls = table.groupby("calls").agg(mean=("reward", "mean"), count=("reward", "count"), won=("success", "sum"))
    assert [(by.tool_calls, by.rollouts, by.solved) for by in calls.by_count] == [
        (count, group["count"], group["won"]) for count, group in by_calls.iterrows()
    ]
    assert [by.mean_reward for by in calls.by_count] == pytest.approx(list(by_calls["mean"]), rel=1e-14)
    counts = table.reward.round(9).value_counts()  # sums that differ only by rounding are one value
    assert rewards.distinct == len(counts)
    assert [value.rollouts for value in rewards.most_frequent] == sorted(counts, reverse=True)[:20]
    assert all(counts[value.reward] == value.rollouts for value in rewards.most_frequent)
    by_task = table.groupby("_ng_task_index").reward
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(getattr(run.by_task, name), getattr(by_task, name)(), rtol=1e-12)


def test_success_reported_by_the_environment_decides_and_a_row_without_it_is_not_solved(tmp_path: Path) -> None:
    rows = [row(0, 0, 1.0, success=False), row(0, 1, -3.0, success=True), row(0, 2, 9.0)]
    profile = load_run(tmp_path, rows).profile
    assert profile.solved is not None
    assert profile.solved.rollouts == 1 and "environment" in profile.solved.rule
    [note] = profile.notes
    assert note.startswith("1 of 3 rows ")


def test_a_pass_threshold_overrides_the_environments_success(tmp_path: Path) -> None:
    rows = [row(0, 0, 0.5, success=False), row(0, 1, 0.25, success=True)]
    found = load_run(tmp_path, rows, pass_threshold=0.5).profile.solved
    assert found is not None
    assert found.rollouts == 1 and "0.5 (pass_threshold)" in found.rule


@pytest.mark.parametrize(("rewards", "expected"), [([0, 0.5, 1.0], 1), ([0.0], 0), ([0, 1.5], None), ([-0.1, 1], None)])
def test_without_success_only_a_reward_of_1_on_a_0_to_1_scale_is_solved(
    tmp_path: Path, rewards: list[float], expected: int | None
) -> None:
    found = load_run(tmp_path, [row(0, i, reward) for i, reward in enumerate(rewards)]).profile.solved
    assert (found.rollouts if found else None) == expected


def test_missing_rollouts_appear_in_coverage_and_bounds(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 2.0, success=True), row(0, 1, -1.0, success=False)])
    write_manifest(path, tasks=3, repeats=2)
    profile = load(path).profile
    coverage = profile.coverage
    assert (coverage.measured, coverage.expected, coverage.missing) == (2, 6, 4)
    assert (coverage.tasks_measured, coverage.tasks_expected, coverage.tasks_complete) == (1, 3, 1)
    assert profile.solved is not None and profile.rewards is not None
    assert profile.solved.rate.mean == 1 / 2
    rate = profile.solved.bounds
    assert (rate.missing_as_zero, rate.lowest, rate.highest) == (1 / 6, 1 / 6, 5 / 6)
    reward = profile.rewards.bounds
    assert (reward.missing_as_zero, reward.lowest, reward.highest) == (1 / 6, (1 - 4) / 6, (1 + 8) / 6)


def test_pass_at_k_is_also_given_with_missing_rollouts_as_failed(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([2], 2))
    write_manifest(path, tasks=2, repeats=2)
    tasks = load(path).profile.tasks
    assert tasks is not None
    assert [(entry.any.mean, entry.any_missing_failed) for entry in tasks.pass_at] == [(1.0, 0.5), (1.0, 0.5)]


@pytest.mark.parametrize(
    ("name", "lines", "option"),
    [
        ("x_materialized_inputs.jsonl", ["{}"] * 4, ""),
        ("x_status.json", ['{"expected": 4}'], ""),
        ("tasks.jsonl", ["{}"] * 2, "inputs"),
        ("inputs.jsonl", ["{}"] * 4, "materialized"),
    ],
)
def test_the_expected_count_is_read_from_other_files_too(
    tmp_path: Path, name: str, lines: list[str], option: str
) -> None:
    path, other = write(tmp_path / "x.jsonl", grid([1], 2)), tmp_path / name
    other.write_text("\n".join(lines) + "\n")
    options: dict[str, Any] = {option: other} if option else {}
    assert load(path, **options).profile.coverage.expected == 4


def test_an_unreadable_manifest_is_noted_and_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 2))
    (tmp_path / "x_manifest.json").write_text("{half")
    profile = load(path).profile
    assert profile.coverage.expected is None
    assert any("x_manifest.json" in note for note in profile.notes)


def test_tasks_whose_rollouts_all_got_the_same_reward_are_counted(tmp_path: Path) -> None:
    profile = load_run(tmp_path, [*grid([0, 0, 4, 2], 4), solved(4, 0, True)]).profile
    assert profile.tasks is not None
    flat = profile.tasks.zero_variance
    assert (flat.tasks, flat.of, flat.all_solved, flat.none_solved) == (3, 4, 1, 2)
    assert (profile.tasks.never_solved, profile.tasks.never_solved_first) == (2, [0, 1])


@pytest.mark.parametrize("repeats", [4, 40])
def test_every_task_is_in_exactly_one_bar_of_the_solve_rates(tmp_path: Path, repeats: int) -> None:
    counts = list(range(repeats + 1))
    tasks = load_run(tmp_path, grid(counts, repeats)).profile.tasks
    assert tasks is not None
    assert sum(bar.tasks for bar in tasks.solve_rates) == len(counts)
    assert tasks.solve_rates[0].tasks == tasks.solve_rates[-1].tasks == 1
    for bar in tasks.solve_rates:
        inside = [c for c in counts if c / repeats == bar.low or (bar.low < c / repeats < bar.high)]
        assert bar.tasks == len(inside) - (bar.low == 0 < bar.high)


def test_failures_are_counted_by_kind_and_outcome(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 2))
    write_manifest(path, tasks=1, repeats=4)
    write_failures(
        path, [(0, 0, "timeout"), (0, 2, "timeout"), (0, 2, "overloaded"), (0, 2, "timeout"), (0, 3, "bad_task")]
    )
    found = load(path).profile.failures
    assert (found.attempts, found.mended, found.lost) == (5, 1, 2)
    assert [(kind.kind, kind.attempts, kind.lost) for kind in found.kinds] == [
        ("timeout", 3, 1),
        ("bad_task", 1, 1),
        ("overloaded", 1, 0),
    ]
    assert found.kinds[0].servers == ["policy_model"]


def test_finish_reasons_carry_their_solved_count_and_mean_reward(tmp_path: Path) -> None:
    rows = [row(0, i, float(i), success=i > 1, finish_reason="done" if i else "length") for i in range(4)]
    ends = load_run(tmp_path, rows).profile.ends
    assert [(end.name, end.rollouts, end.solved, end.mean_reward) for end in ends] == [
        ("done", 3, 2, 2.0),
        ("length", 1, 0, 0.0),
    ]


def test_time_outside_all_stages_is_the_rest(tmp_path: Path) -> None:
    timings = {"model_s": 1.0, "tool_s": 0.5, "total_s": 2.0, "model_calls": 3}
    profile = load_run(tmp_path, [row(0, i, 0.0, timings=timings) for i in range(3)]).profile
    assert [(stage.stage, stage.seconds.total, stage.share) for stage in profile.stages] == [
        ("total", 6.0, 1.0),
        ("model", 3.0, 0.5),
        ("(rest)", 1.5, 0.25),
        ("tool", 1.5, 0.25),
    ]
    assert profile.turns is not None and profile.turns.mean == 3.0


@pytest.mark.parametrize(
    ("timings", "expected"),
    [
        # As in a mixture: rollouts with tools are short, and those without spend all their time in the model.
        (
            [{"model_s": 9.0, "total_s": 10.0}, {"model_s": 0.1, "tool_s": 0.7, "total_s": 1.0}],
            {"total": 1.0, "model": 9.1 / 11, "tool": 0.7 / 11, "(rest)": 1.2 / 11},
        ),
        (  # overlapping stages
            [{"model_s": 1.0, "tool_s": 3.0, "total_s": 2.0}],
            {"total": None, "model": 0.25, "tool": 0.75, "(rest)": 0.0},
        ),
    ],
)
def test_shares_of_stages_add_up_to_100_percent(
    tmp_path: Path, timings: list[Json], expected: dict[str, float | None]
) -> None:
    rows = [row(task, 0, 0.0, timings=timings[task % len(timings)]) for task in range(8)]
    shares = {stage.stage: stage.share for stage in load_run(tmp_path, rows).profile.stages}
    assert shares == {name: None if share is None else pytest.approx(share) for name, share in expected.items()}


def test_tokens_are_totalled_and_divided_by_solved_rollouts(tmp_path: Path) -> None:
    tokens = load_run(tmp_path, grid([1, 0], 2)).profile.tokens
    assert tokens.input is not None and tokens.output is not None
    assert (tokens.input.total, tokens.output.total, tokens.per_solved) == (400.0, 40.0, 440.0)


def test_drift_is_the_share_of_turns_that_break_the_token_history(tmp_path: Path) -> None:
    histories = [{"turns": 3, "breaks": 1, "segments": 2}, {"turns": 5, "breaks": 0, "segments": 1}, None]
    drift = load_run(
        tmp_path, [row(0, i, 0.0, token_trail=history) for i, history in enumerate(histories)]
    ).profile.drift
    assert drift is not None
    assert (drift.rollouts, drift.turns, drift.breaks, drift.rate) == (2, 8, 1, 1 / 8)
    assert (drift.broken_rollouts, drift.most_segments) == (1, 2)


@pytest.mark.parametrize("count", [1, 2, 40, 41, 500])
def test_every_reward_is_in_exactly_one_bar_of_the_histogram(count: int) -> None:
    values = np.linspace(-8.9, 10.9, count) if count > 1 else np.array([3.0])
    bars = histogram(values)
    assert sum(bar.rollouts for bar in bars) == count
    assert (bars[0].low, bars[-1].high) == pytest.approx((values[0], values[-1]), abs=1e-9)


def test_rewards_that_differ_only_by_rounding_share_a_bar() -> None:
    assert [bar.rollouts for bar in histogram(np.array([0.1 + 0.2, 0.3, -0.0, 0.0]))] == [2, 2]


def test_rollouts_that_the_manifest_does_not_list_are_excluded(tmp_path: Path) -> None:
    path = write(tmp_path / "rollouts.jsonl", [solved(0, 0, True), solved(1, 0, False), solved(7, 0, True)])
    write_manifest(path, tasks=3, repeats=1)
    found = load(path).profile
    assert (found.coverage.measured, found.coverage.missing) == (2, 1)
    assert any("1 rows are excluded" in note and "task 7, repeat 0" in note for note in found.notes)


def test_rollouts_that_another_model_answered_are_counted_in_a_note(tmp_path: Path) -> None:
    rows = random_rows(2, 5)
    for other, told in (("other", True), ("asked", False)):
        for number, each in enumerate(rows):
            each["response"]["model"] = other if number == 3 else "asked"
        notes = load_run(tmp_path, rows).profile.notes
        assert any("asked 9, other 1" in note for note in notes) == told
