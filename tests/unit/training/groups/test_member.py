"""Rows as group members: what counts besides tokens."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.records.types import Json
from rollyard.training.endings import EndingRules
from rollyard.training.groups.member import GroupMember, member_of_row
from rollyard.training.sequences.training_sequence import SequenceError, SequenceRules
from tests.unit.training.recorded_turns import row, turn


def member(**fields: Any) -> GroupMember:
    rollout: Json = {**row(turn([1], [2])), **fields}
    return member_of_row(rollout, "a", SequenceRules(), EndingRules())


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf"), "1", True])
def test_a_reward_that_is_not_a_finite_number_is_an_error(reward: Any) -> None:
    with pytest.raises(SequenceError, match=r"reward .*finite"):
        member(reward=reward)


def test_a_rollout_that_is_left_out_needs_no_reward() -> None:
    assert not member(reward=None, mask_sample=True).counts


@pytest.mark.parametrize("components", [{"format": "0.1", "correct": 1.0, "other": None}, [1.0], 3])
def test_parts_of_a_reward_that_are_not_numbers_are_absent(components: Any) -> None:
    assert member(reward_components=components).components in ({"correct": 1.0}, {})


def test_a_success_that_is_not_true_or_false_is_unknown() -> None:
    assert member(success="yes").success is None
