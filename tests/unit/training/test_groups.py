"""Endings and masks of rollouts, advantages of a group, and why groups are skipped."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rollyard.records.errors import FailureKind
from rollyard.records.types import Json
from rollyard.training.groups import EndingRules, GroupMember, Treatment, groups_of, member_of_failure, member_of_row
from rollyard.training.training_sequence import SequenceError, SequenceRules
from tests.unit.training.recorded_turns import row, turn


def played(reward: float, task: str = "a", finish_reason: str = "done") -> GroupMember:
    rollout = row(turn([1], [2]), reward=reward, finish_reason=finish_reason)
    return member_of_row(rollout, task, SequenceRules(), EndingRules())


def failed(treatment: Treatment, task: str = "a") -> GroupMember:
    return member_of_failure(task, 0, "timeout", treatment)


def advantages(*members: GroupMember) -> Sequence[float]:
    [group] = groups_of(members, scale="group")
    return group.advantages


def test_an_advantage_is_the_difference_to_the_mean_over_the_samples_standard_deviation() -> None:
    deviation = statistics.stdev([0.0, 1.0, 2.0]) + 1e-4
    assert advantages(played(0.0), played(1.0), played(2.0)) == pytest.approx([-1 / deviation, 0.0, 1 / deviation])


def test_a_failed_rollout_changes_neither_mean_nor_deviation_but_a_timeout_of_the_policy_counts_as_0() -> None:
    without = advantages(played(0.0), played(1.0))
    assert advantages(played(0.0), failed(Treatment.LEFT_OUT), played(1.0)) == (without[0], 0.0, without[1])
    assert advantages(played(1.0), played(1.0), failed(Treatment.ZERO))[0] > 0


def test_a_truncated_rollout_has_no_loss_but_its_reward_counts() -> None:
    [group] = groups_of([played(0.0), played(1.0), played(5.0, finish_reason="length")], scale="none")
    assert group.advantages == (-2.0, -1.0, 3.0)
    assert [member.has_loss for member in group.members] == [True, True, False]


def test_a_rollout_without_an_answer_of_the_model_has_no_loss_but_its_reward_counts() -> None:
    unanswered = member(reward=3.0, finish_reason="time_limit", timings={"model_calls": 0}, response={"output": []})
    assert (unanswered.counts, unanswered.has_loss, unanswered.reward) == (True, False, 3.0)


def test_the_deviation_of_the_batch_is_that_of_all_rewards() -> None:
    members = [played(0.0), played(2.0), played(5.0, "b"), played(5.0, "b")]
    first, second = groups_of(members, scale="batch")
    assert first.advantages[1] == pytest.approx(1 / (statistics.stdev([0.0, 2.0, 5.0, 5.0]) + 1e-4))
    assert second.skipped == "zero_variance"


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([played(1.0), failed(Treatment.LEFT_OUT)], "too_few_members"),
        ([played(1.0)], "too_few_members"),
        ([played(1.0), played(1.0)], "zero_variance"),
        ([played(0.1 + 0.2), played(0.3)], "zero_variance"),
        ([played(1.0, finish_reason="length"), played(0.0, finish_reason="length")], "no_loss"),
    ],
)
def test_a_group_that_teaches_nothing_is_skipped_with_its_reason(members: list[GroupMember], reason: str) -> None:
    [group] = groups_of(members, scale="group")
    assert (group.skipped, set(group.advantages)) == (reason, {0.0})


@settings(max_examples=40)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8))
def test_advantages_of_a_group_sum_to_0(rewards: list[float]) -> None:
    [group] = groups_of([played(reward) for reward in rewards], scale="group")
    assert sum(group.advantages) == pytest.approx(0.0, abs=1e-4)


def member(**fields: Any) -> GroupMember:
    rollout: Json = {**row(turn([1], [2])), **fields}
    return member_of_row(rollout, "a", SequenceRules(), EndingRules())


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf"), "1", True])
def test_a_reward_that_is_not_a_finite_number_is_an_error_unless_the_rollout_is_left_out(reward: Any) -> None:
    with pytest.raises(SequenceError, match=r"reward .*finite"):
        member(reward=reward)
    assert not member(reward=reward, mask_sample=True).counts


@pytest.mark.parametrize("components", [{"format": "0.1", "correct": 1.0, "other": None}, [1.0], 3])
def test_parts_of_a_reward_that_are_not_numbers_are_absent(components: Any) -> None:
    assert member(reward_components=components, success="yes").components in ({"correct": 1.0}, {})


@pytest.mark.parametrize(
    ("reason", "name", "treatment"),
    [
        ("length", "length", Treatment.PLAYED),
        ("gave_up", "gave_up", Treatment.LEFT_OUT),
        ("an_agents_own_reason", "an_agents_own_reason", Treatment.PLAYED),
        (None, "unknown", Treatment.MASKED),
        ("content_filter", "content_filter", Treatment.MASKED),
    ],
)
def test_settings_replace_the_defaults_of_the_page(reason: str | None, name: str, treatment: Treatment) -> None:
    given = {"length": Treatment.PLAYED, "gave_up": Treatment.LEFT_OUT, "unknown": Treatment.MASKED}
    assert EndingRules(finish_reasons=given).of_row({"finish_reason": reason}) == (name, treatment)


@pytest.mark.parametrize("kind", FailureKind)
def test_failures_are_left_out_unless_the_policy_was_too_slow(kind: FailureKind) -> None:
    expected = Treatment.ZERO if kind is FailureKind.TIMEOUT else Treatment.LEFT_OUT
    assert EndingRules().of_failure(kind, "policy_model", ["policy_model"]) is expected
    assert EndingRules().of_failure(kind, "sokoban", ["policy_model"]) is Treatment.LEFT_OUT


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"finish_reasons": {"lenght": "played"}}, "length"),
        ({"finish_reasons": {"done": "zero"}}, "zero is for"),
        ({"finish_reasons": {"done": "kept"}}, "'played', 'masked', 'zero' or 'left_out'"),
        ({"model_timeout": "played"}, "no tokens"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EndingRules(**settings)
