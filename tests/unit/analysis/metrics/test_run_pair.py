"""Comparisons of two runs: which test is used, which tasks are paired, and the edge cases."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rollyard.analysis.metrics import run_pair
from rollyard.analysis.metrics.run_pair import Metric, PairedDifference, PairLevel, RunPair, compare_runs
from rollyard.analysis.report.comparison_report import verdict
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from tests.support.rollout_files import grid, load_run, random_rows, row, solved

LEVEL = PairLevel(resamples=2000)


def compare(
    folder: Path, before: Sequence[Json], after: Sequence[Json], *names: str, level: PairLevel = LEVEL
) -> RunPair:
    runs = load_run(folder, before, "before"), load_run(folder, after, "after")
    return compare_runs(*runs, [Metric(name) for name in names], level)


def only(found: RunPair) -> PairedDifference:
    [one] = found.differences
    return one


def bounds(one: PairedDifference) -> tuple[float, float]:
    assert one.interval is not None
    return one.interval.low, one.interval.high


def singles(*outcomes: int) -> list[Json]:
    return grid(outcomes, 1)


def scored(of: int) -> list[Json]:
    parts = [{"format": of == 4 or task % 2 == 0} for task in range(4)]
    return [row(task, 0, 0.0, score=task / of, reward_components=part) for task, part in enumerate(parts)]


def test_one_binary_rollout_per_task_is_compared_by_mcnemars_test(tmp_path: Path) -> None:
    found = only(compare(tmp_path, singles(1, 1, 0, 0, 0, 1), singles(1, 0, 1, 1, 0, 0)))
    assert found.mcnemar is not None
    assert (found.mcnemar.both, found.mcnemar.gained, found.mcnemar.lost, found.mcnemar.neither) == (1, 2, 2, 1)
    assert found.p == found.mcnemar.exact_p == 1.0


def test_repeats_are_compared_by_the_bootstrap_over_tasks(tmp_path: Path) -> None:
    rng = random.Random(0)
    before = [rng.randint(0, 4) for _ in range(60)]
    after = [min(4, count + rng.choice([0, 0, 1])) for count in before]
    found = only(compare(tmp_path, grid(before, 4), grid(after, 4), level=PairLevel()))
    changes = (np.array(after) - np.array(before)) / 4
    expected = stats.bootstrap((changes,), np.mean, n_resamples=10_000, rng=np.random.default_rng(1))
    t_low, t_high = stats.t.interval(0.95, 59, changes.mean(), stats.sem(changes))
    # Agresti and Min: half a task at each end of the range.
    adjusted = changes.sum() / 62
    reach = stats.t.ppf(0.975, 59) * math.sqrt((((changes**2).sum() + 1) / 62 - adjusted**2) / 62)
    low = min(expected.confidence_interval.low, t_low, adjusted - reach)
    high = max(expected.confidence_interval.high, t_high, adjusted + reach)
    assert bounds(found) == pytest.approx((low, high), abs=0.004)
    assert found.mcnemar is None and found.p is not None and found.p < 0.001


def test_duplicate_tasks_count_as_repeats_of_one_task(tmp_path: Path) -> None:
    before, after = (
        [{**one, "_ng_task_key": f"{1 + one['_ng_task_index'] // 2:016x}"} for one in rows]
        for rows in (singles(1, 0, 1), singles(1, 1, 1))
    )
    found = compare(tmp_path, before, after)
    one = only(found)
    assert (found.tasks, one.baseline, one.candidate, one.better) == (2, 0.75, 1.0, 1)
    assert "1 duplicate tasks" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("before", "after", "metric", "found"),
    [  # tasks with different numbers of rollouts have the same weight; pass@k needs k rollouts
        ([*grid([4], 4), solved(1, 0, False)], [*grid([1], 2), *grid([0, 3], 3)[3:]], "solve_rate", (2, 0.5, 0.75)),
        ([*grid([1, 2], 4), solved(2, 0, True)], grid([2, 3, 1], 4), "pass@2", (2, (0.5 + 5 / 6) / 2, (5 / 6 + 1) / 2)),
        (scored(4), scored(2), "score", (4, 0.375, 0.75)),
        (scored(4), scored(2), "reward_components.format", (4, 1.0, 0.5)),
    ],
)
def test_a_metric_is_a_mean_over_tasks(
    tmp_path: Path, before: list[Json], after: list[Json], metric: str, found: tuple[int, float, float]
) -> None:
    one = only(compare(tmp_path, before, after, metric))
    assert (one.tasks, one.baseline, one.candidate) == pytest.approx(found)


def test_without_any_change_the_interval_is_the_bound_from_the_number_of_tasks(tmp_path: Path) -> None:
    repeated = only(compare(tmp_path, grid([1, 2, 3], 4), grid([1, 2, 3], 4)))
    single = only(compare(tmp_path, singles(*[1, 0] * 25), singles(*[1, 0] * 25)))
    for one, reach in ((repeated, 1 - 0.025 ** (1 / 3)), (single, 3.8415 / 53.8415)):
        assert (one.difference, one.p, one.detectable_effect) == (0.0, 1.0, None)
        assert bounds(one) == pytest.approx((-reach, reach), rel=1e-3)


@pytest.mark.parametrize(("tasks", "gained"), [(12, 2), (12, -2), (1, 2)])
def test_if_all_tasks_changed_equally_the_p_value_is_that_of_the_sign_test(
    tmp_path: Path, tasks: int, gained: int
) -> None:
    found = only(compare(tmp_path, grid([2] * tasks, 4), grid([2 + gained] * tasks, 4)))
    assert found.p == pytest.approx(stats.binomtest(tasks, tasks).pvalue)
    assert ("more than noise" in verdict(found, 0.05)) == (tasks == 12)


def test_rewards_are_compared_unless_they_equal_success_and_constant_ones_have_no_interval(tmp_path: Path) -> None:
    assert [one.metric for one in compare(tmp_path, singles(1, 0), singles(0, 0)).differences] == ["solve_rate"]
    scored = compare(tmp_path, random_rows(10, 2, 1), random_rows(10, 2, 2))
    assert [one.metric for one in scored.differences] == ["solve_rate", "reward"]
    rows = [row(task, 0, 3.0) for task in range(5)]
    found = only(compare(tmp_path, rows, rows))
    assert (found.metric, found.difference, found.interval) == ("reward", 0.0, None)


def test_every_number_is_finite_whatever_the_runs(tmp_path: Path) -> None:
    rng = random.Random(3)
    for number in range(40):
        tasks, repeats = rng.randint(1, 5), rng.randint(1, 3)
        sides = [
            [row(task, repeat, rng.choice(one)) for task in range(tasks) for repeat in range(rng.randint(1, repeats))]
            for one in (rng.choice([[0.0], [0.0, 1.0], [-3.0, 0.1, 1e50], [1.0]]) for _ in range(2))
        ]
        found = compare(tmp_path / str(number), sides[0], sides[1], level=PairLevel(effect=0.1, resamples=200))
        json.dumps(found.model_dump(), allow_nan=False)


def test_the_order_of_the_rows_does_not_change_a_number(tmp_path: Path) -> None:
    rows = random_rows(20, 4, 1), random_rows(20, 4, 2)
    assert compare(tmp_path, rows[0][::-1], rows[1][::-1]) == compare(tmp_path, *rows)


def test_cons_at_k_is_the_profiles(tmp_path: Path) -> None:
    rng = random.Random(5)
    before, after = (
        [solved(at // 5, at % 5, answer == "1", extracted_answer=answer) for at, answer in enumerate(answers)]
        for answers in ([rng.choice("1123") for _ in range(45)] for _ in range(2))
    )
    found = only(compare(tmp_path, before, after, "cons@3"))
    for value, own in ((found.baseline, before), (found.candidate, after)):
        tasks = load_run(tmp_path, own).profile.tasks
        assert tasks is not None and tasks.pass_at[2].consensus is not None
        assert value == pytest.approx(tasks.pass_at[2].consensus.mean)


@pytest.mark.parametrize("metric", ["no_such_key", "cons@2", "solve_rate"])
def test_a_metric_that_a_run_does_not_define_is_refused(tmp_path: Path, metric: str) -> None:
    rows = [row(task, 0, float(task)) for task in range(4)]
    with pytest.raises(OperatorError, match=metric):
        compare(tmp_path, rows, rows, metric)


def test_each_dataset_of_a_mixture_is_compared(tmp_path: Path) -> None:
    rows = grid([0, 1, 1, 2], 2), grid([1, 1, 0, 0], 2)
    before, after = ([{**one, "dataset_name": "ab"[at // 4]} for at, one in enumerate(own)] for own in rows)
    found = compare(tmp_path, before, after)
    rates = {one.dataset: (one.difference, one.tasks) for one in found.differences}
    assert rates == {None: (-0.25, 4), "a": (0.25, 2), "b": (-0.75, 2)}


def test_tokens_and_turns_are_shown_but_not_tested(tmp_path: Path) -> None:
    rows = [row(task, 0, 1.0, calls=2 + task) for task in range(4)]
    costs = {one.metric: one for one in compare(tmp_path, singles(1, 1, 1, 1), rows).costs}
    assert (costs["tool_calls"].baseline, costs["tool_calls"].candidate, costs["tool_calls"].p) == (1.0, 3.5, None)


def test_several_candidates_are_corrected_by_holm(tmp_path: Path) -> None:
    base, better = singles(*[0] * 30), singles(*[1] * 7, *[0] * 23)
    first, second = compare(tmp_path, base, better), compare(tmp_path, base, base)
    (one, other), tests = run_pair.with_holm([first, second])
    assert tests == 2 and only(other).p_holm == 1.0
    assert only(one).p_holm == pytest.approx(2 * (only(first).p or 0))


def test_the_interval_misses_rare_large_regressions_as_seldom_as_it_promises() -> None:
    """50 tasks with four rollouts each; 5% of them regress from 95% to 0%."""
    random_numbers, trials, too_high = np.random.default_rng(0), 200, 0
    for _ in range(trials):
        before = np.where(random_numbers.random(50) < 0.5, 0.95, 0.02)
        after = np.where(random_numbers.random(50) < 0.05, 0.0, before)
        rates = [random_numbers.binomial(4, chances) / 4 for chances in (before, after)]
        found = run_pair.difference(Metric("solve_rate"), rates[0], rates[1], PairLevel(resamples=200), single=False)
        too_high += bounds(found)[0] > -0.05 * (0.95 + 0.02) / 2
    assert too_high / trials < 0.03
