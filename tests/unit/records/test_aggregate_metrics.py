"""Statistics of verify responses, in NeMo Gym's format."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest

from rollyard.records.aggregate_metrics import aggregate, is_identifier
from rollyard.records.types import Json


def row(task: int, rollout: int, reward: float, **more: Any) -> Json:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, "reward": reward, **more}


def test_every_numeric_field_and_the_usage_get_five_statistics() -> None:
    usage = {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}
    rows = [row(0, 0, 1.0, moves=2, response={"usage": usage}), row(0, 1, 0.0, moves=4), row(1, 0, 0.0, moves=9)]
    metrics = aggregate(rows)["agent_metrics"]
    names = [metrics[f"{name}/moves"] for name in ("mean", "max", "min", "median", "std")]
    assert names == [5.0, 9.0, 2.0, 4.0, pytest.approx(math.sqrt(13))]
    assert (metrics["mean/input_tokens"], metrics["max/output_tokens"]) == (10.0, 2.0)


IDENTIFIERS = "_ng_task_index task_index id level_id idx room_seed created_at uuid row_IDX taskId level-id row_number"


@pytest.mark.parametrize("name", IDENTIFIERS.split())
def test_an_identifier_is_not_averaged(name: str) -> None:
    assert not any(map(is_identifier, ("reward", "moves", "valid", "inside", "grid", "number", "wrong_number")))
    assert is_identifier(name)
    assert not [key for key in aggregate([row(0, 0, 1.0, **{name: 7})])["agent_metrics"] if key.endswith(f"/{name}")]


@pytest.mark.parametrize("index", [7, 7.0, "7"])
def test_each_task_has_a_group_with_its_rollouts_whatever_type_a_client_gave_its_index(index: Any) -> None:
    groups = aggregate([row(index, 1, 0.0), row(7, 0, 1.0), row(3, 0, 1.0)])["group_level_metrics"]
    found = [(group["_ng_task_index"], group["num_rollouts"], group["mean/reward"]) for group in groups]
    assert found == [(3, 1, 1.0), (7, 2, 0.5)]
    assert [info["rollout_id"] for info in groups[1]["rollout_infos"]] == ["7:1", "7:0"]


def test_success_decides_what_passes_and_without_it_rewards_on_a_scale_have_no_pass_rate() -> None:
    rows = [row(0, 0, 0.2, success=True), row(0, 1, 0.9, success=False)]
    assert aggregate(rows)["agent_metrics"]["pass@1/accuracy"] == 50.0
    assert not [name for name in aggregate([row(0, 0, 0.3)])["agent_metrics"] if name.startswith("pass@")]
    assert aggregate([]) == {"agent_metrics": {}, "key_metrics": {}, "group_level_metrics": []}


def test_a_task_with_fewer_rollouts_is_left_out_of_larger_k() -> None:
    metrics = aggregate([row(0, 0, 1.0), row(0, 1, 1.0), row(1, 0, 0.0)])["agent_metrics"]
    assert (metrics["pass@1/accuracy"], metrics["pass@2/accuracy"]) == (50.0, 100.0)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300])
def test_a_value_that_is_not_usable_is_left_out_and_counted(value: float) -> None:
    metrics = aggregate([row(0, 0, 1.0, score=value), row(0, 1, 1.0, score=2.0)])["agent_metrics"]
    assert (metrics["mean/score"], metrics["std/score"], metrics["left_out/score"]) == (2.0, 0.0, 1)
    assert b"null" not in orjson.dumps(metrics)


@pytest.mark.parametrize(
    "broken", [{"response": 1}, {"response": {"usage": []}}, {"_ng_task_index": "a"}, {"reward": None}]
)
def test_a_malformed_response_does_not_stop_the_others(broken: Json) -> None:
    assert aggregate([{**row(0, 0, 1.0), **broken}, row(1, 0, 1.0)])["agent_metrics"]["max/reward"] == 1.0


def test_a_failed_rollout_and_a_missing_reward_count_as_left_out_and_not_as_failed_attempts() -> None:
    failed = {"_ng_task_index": 0, "_ng_rollout_index": 1, "_ng_failure_class": "timeout"}
    answer = aggregate([row(0, 0, 1.0, success=True), failed])
    metrics = answer["agent_metrics"]
    assert (metrics["pass@1/accuracy"], metrics["left_out/rollouts"]) == (100.0, 1)
    assert answer["group_level_metrics"][0]["num_rollouts"] == 1
    metrics = aggregate([{**row(0, 0, 0.0), "reward": None}, row(0, 1, 1.0)])["agent_metrics"]
    assert (metrics["mean/reward"], metrics["pass@1/accuracy"], metrics["left_out/reward"]) == (1.0, 100.0, 1)


@pytest.mark.parametrize("total", [7, 3000])
def test_pass_rates_are_unbiased_estimates_in_percent(total: int) -> None:
    metrics = aggregate([row(0, n, float(n < 3)) for n in range(total)])["key_metrics"]
    for k in (1, 2, total // 2, total - 3, total):
        expected = 100.0 * (1 - math.comb(total - 3, k) / math.comb(total, k))
        assert metrics[f"pass@{k}/accuracy"] == pytest.approx(expected)
    assert metrics["pass@1[avg-of-1]/accuracy"] == 100.0
