from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.analysis.metrics.estimators import clustered_mean
from rollyard.cli.console import numbers
from rollyard.records.scores import ClusteredMean
from rollyard.records.types import Json
from rollyard.services.rollouts.progress import CollectionProgress, FoundConcurrency, summed
from tests.unit.services.clock import Clock


def rollout(task: int, reward: float, **more: Any) -> Any:
    return {"_ng_task_index": task, "reward": reward, **more}


def progress_of(rows: Iterable[Any]) -> CollectionProgress:
    progress = CollectionProgress(10**6)
    for row in rows:
        progress.count(row)
    return progress


def reward_of(progress: CollectionProgress) -> ClusteredMean:
    found = progress.means().reward
    assert found is not None
    return found


@pytest.mark.parametrize(("seed", "scale"), [(0, 1.0), (1, 1e-6), (2, 1e6), (3, 1e-6)])
def test_with_one_rollout_per_task_mean_and_standard_error_match_numpy(seed: int, scale: float) -> None:
    rewards = np.random.default_rng(seed).normal(1000.0, scale, size=2 + 500 * seed)
    found = reward_of(progress_of(rollout(task, float(reward)) for task, reward in enumerate(rewards)))
    assert found.value == pytest.approx(rewards.mean(), rel=1e-12)
    assert found.stderr == pytest.approx(rewards.std(ddof=1) / np.sqrt(len(rewards)), rel=1e-6)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 2)), min_size=1, max_size=5), min_size=1, max_size=9),
    st.randoms(),
)
def test_after_every_rollout_mean_and_error_match_the_report(tasks: list[list[float]], dice: random.Random) -> None:
    rows = [rollout(task, reward) for task, rewards in enumerate(tasks) for reward in rewards]
    dice.shuffle(rows)  # rollouts finish in any order, so tasks have unequal numbers of them
    progress = CollectionProgress(len(rows))
    for count, row in enumerate(rows, 1):
        progress.count(row)
        rows_so_far = sorted(rows[:count], key=lambda row: row["_ng_task_index"])
        index = np.array([row["_ng_task_index"] for row in rows_so_far])
        starts = np.flatnonzero(np.diff(index, prepend=-1))
        expected = clustered_mean(np.array([row["reward"] for row in rows_so_far]), starts)
        found = reward_of(progress)
        assert found.value == pytest.approx(expected.mean, rel=1e-12, abs=1e-9)
        assert (found.stderr or 0.0) == pytest.approx(expected.stderr or 0.0, rel=1e-6, abs=1e-9)


def test_no_rollouts_have_no_mean_and_one_task_has_no_error() -> None:
    progress = CollectionProgress(4)
    assert progress.means().reward is None and progress.successes is None
    for reward in (1.0, 0.0, 1.0):
        progress.count(rollout(0, reward))
    assert reward_of(progress).value == pytest.approx(2 / 3) and reward_of(progress).stderr is None


@pytest.mark.parametrize("reward", [0.0, 0.1, -1e60, 1e60, 1e-300])
def test_a_constant_reward_has_no_error(reward: float) -> None:
    found = reward_of(progress_of(rollout(task, reward) for task in range(7) for _ in range(300)))
    assert (found.value, found.stderr) == (reward, None)


def test_the_error_of_huge_and_small_rewards_is_finite() -> None:
    found = reward_of(progress_of(rollout(task, reward) for task, reward in enumerate([1e60, -1e60, 1.0, -5.0])))
    assert found.stderr == pytest.approx(np.std([1e60, -1e60, 1.0, -5.0], ddof=1) / 2)


def test_a_success_rate_of_0_has_a_bound_from_the_number_of_tasks() -> None:
    progress = progress_of(rollout(task, 0.0, success=False) for task in range(30) for _ in range(16))
    rate = progress.means().success
    assert rate is not None and rate.share_interval is not None
    assert rate.share_interval == pytest.approx((0.0, 1 - 0.05 ** (1 / 30)))


def test_progress_line_and_status_show_the_clustered_error_or_else_a_bound() -> None:
    mixed = progress_of(rollout(task, float(task % 2), success=task % 2 == 1) for task in range(8) for _ in range(50))
    # Eight tasks, four always solved: the error of 400 independent rollouts would be 2.5 %.
    assert "success 50.0% ± 18.9%  reward 0.50 ± 0.19" in numbers(mixed.status("running"))
    status = mixed.status("running")
    assert status.reward_stderr == status.success_stderr == pytest.approx(0.5 / 7**0.5)
    assert status.tasks == 8
    failed = progress_of(rollout(task, 0.0, success=False) for task in range(30) for _ in range(50))
    assert "success 0.0% (at most 9.5%)" in numbers(failed.status("running"))


def test_numbers_over_many_tasks_may_lag_by_1_in_256_rollouts_until_the_end() -> None:
    progress = progress_of(rollout(task, 0.0) for task in range(5120))
    assert reward_of(progress).rollouts == 5120
    seen = []
    for task in range(30):
        progress.count(rollout(task, 1.0))
        late = progress.means(exact=False).reward
        seen.append(late and late.rollouts)
    assert seen == [5120] * 19 + [5140] * 11
    assert progress.status("complete").mean_reward == pytest.approx(30 / 5150)


def mixture() -> list[Json]:
    """Two datasets whose environments have different reward scales."""
    return [
        rollout(task, reward, dataset_name=name, agent_ref={"name": f"{name}_agent"}, success=success)
        for task, name, reward, success in (
            *((0, "rooms", -4.0, False), (0, "rooms", 10.0, True), (1, "rooms", 10.0, True)),
            *((2, "gsm8k", 1.0, True), (3, "gsm8k", 0.0, False)),
        )
    ]


def test_each_dataset_of_a_mixture_has_its_own_numbers() -> None:
    means = progress_of(mixture()).means()
    assert {name: (reward.rollouts, reward.value) for name, (reward, _) in means.datasets.items()} == {
        "gsm8k": (2, 0.5),
        "rooms": (3, pytest.approx(16 / 3)),
    }
    rates = {name: success.value for name, (_, success) in means.datasets.items() if success}
    assert rates == {"gsm8k": 0.5, "rooms": pytest.approx(2 / 3)}
    status = progress_of(mixture()).status("running")
    assert status.datasets["rooms"].successes == 2 and status.datasets["rooms"].reward_stderr is not None


def test_datasets_with_different_reward_scales_have_no_common_mean_reward() -> None:
    progress = progress_of(mixture())
    assert progress.means().reward is None and "-4 to 10" in progress.means().why_no_reward
    assert progress.status("complete").mean_reward is None
    assert progress.status("complete").successes == 3  # success has the same meaning in both


def test_a_common_mean_exists_with_one_agent_or_where_a_reward_of_1_means_success() -> None:
    one_agent = [{**row, "agent_ref": {"name": "agent"}} for row in mixture()]
    assert progress_of(one_agent).means().reward is not None
    unit = [{**row, "reward": float(row["success"])} for row in mixture()]
    assert progress_of(unit).means().reward is not None
    shrunk = [
        {**row, "reward": 0.2 * row["success"] if row["dataset_name"] == "rooms" else row["reward"]} for row in unit
    ]
    assert "reward of 1" in progress_of(shrunk).means().why_no_reward


def test_a_dataset_without_success_prevents_a_common_success_rate() -> None:
    rows = [{**row, "success": None} if row["dataset_name"] == "gsm8k" else row for row in mixture()]
    progress = progress_of(rows)
    assert progress.successes is None and progress.means().success is None
    assert progress.status("running").datasets["rooms"].successes == 2


def test_resumed_rows_count_in_the_mean_but_not_in_the_collection_rate() -> None:
    clock = Clock()
    progress = CollectionProgress(10, clock)
    for _ in range(6):
        progress.count({"reward": 1})
    clock.now += 1000.0
    progress.resumed()
    clock.now += 2.0
    progress.count({"reward": 0})
    assert (progress.measured, progress.collected, progress.rate) == (7, 1, 0.5)
    assert reward_of(progress).value == pytest.approx(6 / 7) and progress.eta_s == pytest.approx(6.0)


def test_the_remaining_time_excludes_abandoned_rollouts() -> None:
    clock = Clock()
    progress = CollectionProgress(10, clock)
    clock.now += 4.0
    for _ in range(4):
        progress.count({"reward": 1})
    progress.count_failure("timeout", permanent=False)
    progress.count_failure("timeout", permanent=True)
    assert progress.eta_s == pytest.approx(5.0) and (progress.failed, progress.failed_attempts) == (1, 2)


def test_the_status_counts_measured_expected_and_failed_rollouts() -> None:
    progress = CollectionProgress(3)
    progress.count({"reward": 1, "success": True})
    progress.count_failure("timeout", permanent=True)
    status = progress.status("incomplete", "because")
    assert (status.measured, status.expected, status.failed, status.failures) == (1, 3, 1, {"timeout": 1})
    assert (status.state, status.note, status.successes, status.reward_stderr) == ("incomplete", "because", 1, None)


def test_the_statuses_of_shards_sum_to_that_of_the_whole_without_standard_errors() -> None:
    rows = [
        rollout(
            task, float(task % 3 == 0), success=task % 3 == 0, dataset_name=f"set {task % 2}", _ng_rollout_index=one
        )
        for task in range(40)
        for one in range(5)
    ]
    parts = [CollectionProgress(100), CollectionProgress(50), CollectionProgress(100)]
    whole, before = CollectionProgress(250), CollectionProgress(250).status("running")
    for number, row in enumerate(rows):
        parts[0 if number % 2 else 2].count(row)
        whole.count(row)
    whole.concurrency = FoundConcurrency(24, "")
    parts[0].concurrency, parts[2].concurrency = FoundConcurrency(16, ""), FoundConcurrency(8, "")
    for progress in (whole, parts[1]):
        progress.count_failure("timeout", permanent=False)
        progress.count_failure("timeout", permanent=True)
        progress.begin((41, 0))
    found, expected = summed(before, [part.status("running") for part in parts]), whole.status("running", "x")
    errors = {"success_stderr": None, "reward_stderr": None}
    datasets = {name: part.model_copy(update=errors) for name, part in expected.datasets.items()}
    varying = {"rollouts_per_s", "eta_s", "started", "updated", "note", "oldest_s", "mean_reward"}
    assert found.model_dump(exclude=varying) == expected.model_copy(update={**errors, "datasets": datasets}).model_dump(
        exclude=varying
    )
    assert found.mean_reward == pytest.approx(expected.mean_reward)
