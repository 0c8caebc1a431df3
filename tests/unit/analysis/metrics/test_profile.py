from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rollyard.analysis.metrics.estimators import clustered_mean
from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.per_task import Groups, votes
from rollyard.analysis.metrics.profile import histogram
from rollyard.records.types import Json
from tests.support.rollout_files import grid, load_run, random_rows, row, solved, write, write_failures, write_manifest


def test_the_figures_of_a_run_and_its_groups_match_pandas(tmp_path: Path) -> None:
    rows = random_rows(20, 8)
    table = pd.DataFrame([{name: one[name] for name in ("_ng_task_index", "reward", "success")} for one in rows])
    table["reward"] = table.reward.round(9)  # sums of tenths are read as such
    table["calls"] = [sum(item["type"] == "function_call" for item in one["response"]["output"]) for one in rows]
    run = load_run(tmp_path, rows)
    rewards, calls, success = run.profile.rewards, run.profile.tool_calls, run.profile.solved
    assert rewards is not None and calls is not None and success is not None and run.by_task is not None
    assert (success.rollouts, success.rate.mean) == (table.success.sum(), table.success.mean())
    expected = table.reward.agg(["min", "max", "median"]).tolist()
    assert [rewards.min, rewards.max, rewards.median] == expected
    assert (rewards.mean.mean, rewards.std) == pytest.approx((table.reward.mean(), table.reward.std()), rel=1e-13)
    assert (calls.mean, calls.min, calls.max) == (table.calls.mean(), table.calls.min(), table.calls.max())
    assert calls.correlation == pytest.approx(table.calls.corr(table.reward), rel=1e-12)
    by_calls = table.groupby("calls").agg(mean=("reward", "mean"), count=("reward", "count"), won=("success", "sum"))
    found = [(by.tool_calls, by.rollouts, by.solved) for by in calls.by_count]
    assert found == [(count, group["count"], group["won"]) for count, group in by_calls.iterrows()]
    assert [by.mean_reward for by in calls.by_count] == pytest.approx(list(by_calls["mean"]), rel=1e-14)
    counts = table.reward.value_counts()
    assert rewards.distinct == len(counts)
    assert [value.rollouts for value in rewards.most_frequent] == sorted(counts, reverse=True)[:20]
    assert all(counts[value.reward] == value.rollouts for value in rewards.most_frequent)
    by_task = table.groupby("_ng_task_index").reward
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(getattr(run.by_task, name), getattr(by_task, name)(), rtol=1e-12)


def test_success_reported_by_the_environment_decides_unless_a_threshold_is_given(tmp_path: Path) -> None:
    rows = [row(0, 0, 1.0, success=False), row(0, 1, -3.0, success=True), row(0, 2, 9.0)]
    for threshold, count, rule in ((None, 1, "environment"), (1.0, 2, "1 (pass_threshold)")):
        profile = load_run(tmp_path, rows, pass_threshold=threshold).profile
        assert profile.solved is not None and profile.solved.rollouts == count and rule in profile.solved.rule
        assert [note.startswith("1 of 3 rows ") for note in profile.notes] == [True] * (threshold is None)


def picked(found: Any, path: str) -> Any:
    """The values of a profile at a path such as `drift.turns,breaks`; of each element of a list."""
    *path_to, names = path.split(".")
    for key in path_to:
        found = [one[key] for one in found] if isinstance(found, list) else found[key]
    values = [[one[name] for one in found] if isinstance(found, list) else found[name] for name in names.split(",")]
    return values if len(values) > 1 else values[0]


def rewards(*values: float, **more: Any) -> list[Json]:
    return [row(0, repeat, value, **more) for repeat, value in enumerate(values)]


def answered(answers: Sequence[object], gold: object, **more: object) -> list[Json]:
    return [solved(0, at, one == gold, extracted_answer=one, **more) for at, one in enumerate(answers)]


STAGES = {"model_s": 1.0, "tool_s": 0.5, "total_s": 2.0, "model_calls": 3}
TRAILS = [{"turns": 3, "breaks": 1, "segments": 2}, {"turns": 5, "breaks": 0, "segments": 1}, None]
RULES = [solved(0, 0, True, dataset_name="a"), *(row(task, 0, 1 / task, dataset_name="b") for task in (1, 2))]
SCALES = [("rooms", -4.0), ("sums", 1.0 / 3), ("rooms", 10.0), ("sums", 1.0)]
CASES: dict[str, tuple[list[Json], dict[str, Any]]] = {
    "without success, a reward of 1 is solved if all are in 0..1": (rewards(0, 0.5, 1.0), {"solved.rollouts": 1}),
    "no reward of 1": (rewards(0.0), {"solved.rollouts": 0}),
    "rewards above 1": (rewards(0, 1.5), {"solved": None}),
    "rewards below 0": (rewards(-0.1, 1), {"solved": None}),
    "tasks whose rollouts all got the same reward": (
        [*grid([0, 0, 4, 2], 4), solved(4, 0, True)],
        {
            "tasks.zero_variance.tasks,of,all_solved,none_solved": [3, 4, 1, 2],
            "tasks.never_solved,never_solved_first": [2, [0, 1]],
        },
    ),
    "finish reasons with their solved count and mean reward": (
        [row(0, i, float(i), success=i > 1, finish_reason="done" if i else "length") for i in range(4)],
        {"ends.name,solved,mean_reward": [["done", "length"], [2, 0], [2.0, 0.0]]},
    ),
    "time outside all stages is the rest": (
        rewards(0.0, 0.0, 0.0, timings=STAGES),
        {
            "stages.stage,share": [["total", "model", "(rest)", "tool"], [1.0, 0.5, 0.25, 0.25]],
            "stages.seconds.total": [6.0, 3.0, 1.5, 1.5],
            "turns.mean": 3.0,
        },
    ),
    "tokens are divided by solved rollouts": (
        grid([1, 0], 2),
        {"tokens.input.total": 400.0, "tokens.output.total": 40.0, "tokens.per_solved": 440.0},
    ),
    "drift is the share of turns that break the token history": (
        [row(0, at, 0.0, token_trail=trail) for at, trail in enumerate(TRAILS)],
        {"drift.rollouts,turns,breaks,rate,broken_rollouts,most_segments": [2, 8, 1, 1 / 8, 1, 2]},
    ),
    "the rule for solved is chosen per dataset": (RULES, {"by_dataset.solved": [1, 1], "solved.rollouts": 2}),
    "a dataset without a rule": (
        [*RULES, row(3, 0, 7.0, dataset_name="b")],
        {"by_dataset.solved": [1, None], "solved": None},
    ),
    "a failed row of a rollout that succeeded later": (
        [row(0, 0, None), row(0, 0, 1.0)],
        {"coverage.measured": 1, "failures.mended,lost": [1, 0]},
    ),
    "rows of NeMo Gym: two calls and a message are three turns": (
        [row(0, 0, 1.0, calls=2), row(0, 1, 0.0, calls=0)],
        {"turns.mean": 2.0, "solved.rollouts": 1, "coverage.expected": None, "ends,stages,drift": [[], [], None]},
    ),
    "rows of an older NeMo Gym without a task index": (
        [{key: value for key, value in one.items() if not key.startswith("_ng")} for one in grid([1, 2], 2)],
        {"tasks": None, "solved.rate.mean": 0.75},
    ),
    "cons@k of extracted answers": (
        answered(["7", "8", "7", None], "7"),
        {"tasks.pass_at.consensus.mean": pytest.approx([0.5, 4 / 6, 0.75, 1.0])},
    ),
    "rollouts without an answer vote for a common wrong one": (
        answered([None, None, "7"], "7"),
        {"tasks.pass_at.consensus.mean": pytest.approx([1 / 3, 0.0, 0.0])},
    ),
    "answers that are 0": (
        answered([0, 0, None], 0),
        {"tasks.pass_at.consensus.mean": pytest.approx([2 / 3, 1.0, 1.0])},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_profile_has_the_figures_of_its_rows(tmp_path: Path, name: str) -> None:
    rows, expected = CASES[name]
    found = load_run(tmp_path, rows).profile.model_dump()
    assert {path: picked(found, path) for path in expected} == expected


def test_missing_rollouts_appear_in_coverage_bounds_and_pass_at_k(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 2.0, success=True), row(0, 1, -1.0, success=False)])
    write_manifest(path, tasks=3, repeats=2)
    profile = load(path).profile
    found = profile.model_dump()
    assert picked(found, "coverage.measured,expected,tasks_measured,tasks_expected,tasks_complete") == [2, 6, 1, 3, 1]
    assert (profile.coverage.missing, picked(found, "solved.rate.mean")) == (4, 1 / 2)
    bounds = "missing_as_zero,lowest,highest"
    assert picked(found, f"solved.bounds.{bounds}") == [1 / 6, 1 / 6, 5 / 6]
    assert picked(found, f"rewards.bounds.{bounds}") == [1 / 6, (1 - 4) / 6, (1 + 8) / 6]
    assert picked(found, "tasks.pass_at.any.mean") == [0.5, 1.0]
    assert picked(found, "tasks.pass_at.any_missing_failed") == pytest.approx([1 / 6, 1 / 3])


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
    (tmp_path / "rollouts_manifest.json").write_text("{half")
    profile = load_run(tmp_path, grid([1], 2)).profile
    assert profile.coverage.expected is None and "rollouts_manifest.json" in " ".join(profile.notes)


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
    kinds = [(0, "timeout"), (2, "timeout"), (2, "overloaded"), (2, "timeout"), (3, "bad_task")]
    write_failures(path, [(0, repeat, kind) for repeat, kind in kinds])
    found = load(path).profile.failures
    assert (found.attempts, found.mended, found.lost) == (5, 1, 2)
    counted = [(kind.kind, kind.attempts, kind.lost) for kind in found.kinds]
    assert counted == [("timeout", 3, 1), ("bad_task", 1, 1), ("overloaded", 1, 0)]
    assert found.kinds[0].servers == ["policy_model"]


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


@pytest.mark.parametrize("count", [1, 2, 40, 41, 500])
def test_every_reward_is_in_exactly_one_bar_of_the_histogram(count: int) -> None:
    values = np.linspace(-8.9, 10.9, count) if count > 1 else np.array([3.0])
    bars = histogram(values)
    assert sum(bar.rollouts for bar in bars) == count
    assert (bars[0].low, bars[-1].high) == pytest.approx((values[0], values[-1]), abs=1e-9)
    assert [bar.rollouts for bar in histogram(np.array([0.1 + 0.2, 0.3, -0.0, 0.0]))] == [2, 2]  # but for rounding


def test_rollouts_that_the_manifest_does_not_list_are_excluded(tmp_path: Path) -> None:
    write_manifest(tmp_path / "rollouts.jsonl", tasks=3, repeats=1)
    found = load_run(tmp_path, [solved(0, 0, True), solved(1, 0, False), solved(7, 0, True)]).profile
    assert (found.coverage.measured, found.coverage.missing) == (2, 1)
    assert any("1 rows are excluded" in note and "task 7, repeat 0" in note for note in found.notes)


def test_rollouts_that_another_model_answered_are_counted_in_a_note(tmp_path: Path) -> None:
    rows = random_rows(2, 5)
    for other, told in (("other", True), ("asked", False)):
        for number, each in enumerate(rows):
            each["response"]["model"] = other if number == 3 else "asked"
        assert any("asked 9, other 1" in note for note in load_run(tmp_path, rows).profile.notes) == told


def test_each_dataset_of_a_mixture_has_the_figures_of_a_separate_run(tmp_path: Path) -> None:
    parts = [{**one, "dataset_name": "ab"[one["_ng_task_index"] % 2]} for one in random_rows(12, 4)]
    datasets = load_run(tmp_path, parts).profile.by_dataset
    assert [one.name for one in datasets] == ["a", "b"]
    for found in datasets:
        separate = load_run(tmp_path, [one for one in parts if one["dataset_name"] == found.name], "alone").profile
        assert separate.solved is not None and separate.rewards is not None and separate.tasks is not None
        assert (found.rate, found.reward) == (separate.solved.rate, separate.rewards.mean)
        assert (found.pass_at, found.tasks, separate.by_dataset) == (separate.tasks.pass_at, 6, [])


@pytest.mark.parametrize("agents", [("rooms", "sums"), ("agent", "agent")])
def test_datasets_of_agents_with_different_reward_scales_have_no_common_mean_reward(
    tmp_path: Path, agents: tuple[str, str]
) -> None:
    rows = [
        row(task, 0, reward, success=task % 3 == 0, dataset_name=name, agent_ref={"name": agents[name == "sums"]})
        for task, (name, reward) in enumerate(SCALES)
    ]
    profile = load_run(tmp_path, rows).profile
    assert profile.rewards is not None and profile.solved is not None  # success has the same meaning in both
    assert bool(profile.rewards.why_no_mean) == ("rooms" in agents) == ("-4 to 10" in profile.rewards.why_no_mean)


def test_the_share_of_a_group_is_the_clustered_mean_of_its_indicator(tmp_path: Path) -> None:
    run = load_run(tmp_path, random_rows(20, 8)[:150])
    assert run.by_task is not None
    groups = Groups.of(run.columns, run.solved, run.by_task.starts)
    for calls in range(1, 12):
        mask = run.columns.tool_calls == calls
        expected = clustered_mean(mask.astype(float), run.by_task.starts, is_share=True)
        assert groups.share(np.flatnonzero(mask)).model_dump() == pytest.approx(expected.model_dump(), rel=1e-12)


def cons_at(k: int, answers: Sequence[int], right: Sequence[bool]) -> float:
    subsets = list(itertools.combinations(range(len(answers)), k))
    winners = (Counter(answers[index] for index in subset).most_common(1)[0][0] for subset in subsets)
    return sum(right[answers.index(winner)] for winner in winners) / len(subsets)


def cons_shares(answers: Sequence[Sequence[int]], right: Sequence[Sequence[bool]]) -> list[list[float]]:
    measured = np.array([len(one) for one in answers])
    found = votes(np.concatenate(answers), np.concatenate(right).astype(bool), np.cumsum(measured) - measured, measured)
    assert found is not None
    by_task = {task: one.shares[index] for one in found for index, task in enumerate(one.tasks.tolist())}
    return [by_task[task].tolist() for task in range(len(answers))]


def test_cons_at_k_equals_the_enumeration_of_all_subsets_and_the_first_answer_wins_a_tie() -> None:
    rng = random.Random(0)
    answers = [[rng.randint(2, rng.choice([2, 3, 7])) for _ in range(rng.randint(1, 9))] for _ in range(60)]
    right = [[rng.random() < 0.5 for _ in own] for own in answers]
    for own, flags, found in zip(answers, right, cons_shares(answers, right), strict=True):
        assert found == pytest.approx([cons_at(k, own, flags) for k in range(1, len(own) + 1)], abs=1e-11)
    assert cons_shares([[2, 3], [3, 2]], [[True, False], [False, True]]) == [[0.5, 1.0], [0.5, 0.0]]
    too_many = votes(np.full(1001, 2), np.ones(1001, bool), np.array([0]), np.array([1001]))
    assert too_many is None  # a double cannot count their subsets


def test_a_mixture_has_cons_at_k_only_for_its_datasets_with_answers(tmp_path: Path) -> None:
    played = [solved(1, repeat, True, dataset_name="sokoban") for repeat in range(2)]
    profile = load_run(tmp_path, [*answered(["7", "7"], "7", dataset_name="gsm8k"), *played]).profile
    assert picked(profile.model_dump(), "tasks.pass_at.consensus") == [None, None]
    found = {one.name: one.pass_at[-1].consensus for one in profile.by_dataset}
    assert found["gsm8k"] is not None and found["gsm8k"].mean == 1.0 and found["sokoban"] is None
