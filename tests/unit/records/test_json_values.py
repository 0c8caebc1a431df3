from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from rollyard.records.rewards import is_reward
from rollyard.records.types import MAX_REWARD, Verdict, differences, is_number, number, whole_number

NOT_NUMBERS: list[Any] = [None, True, False, "1", [], {}, math.nan, math.inf, -math.inf, 10**400]


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_values_that_are_not_finite_numbers_count_as_absent(value: Any) -> None:
    assert not is_number(value) and number(value, None) is None and not is_reward(value)
    assert value == 10**400 or whole_number(value) is None


@pytest.mark.parametrize(
    "reward", [math.nan, math.inf, -math.inf, 2 * MAX_REWARD, -2 * MAX_REWARD, 10**400, "high", "1.0", True]
)
def test_a_verdict_has_a_finite_reward_of_bounded_size(reward: Any) -> None:
    with pytest.raises(ValidationError):
        Verdict(reward=reward)


@pytest.mark.parametrize("reward", [0, -1.5, MAX_REWARD, -MAX_REWARD])
def test_a_verdict_accepts_every_reward_that_rows_may_have(reward: Any) -> None:
    assert is_reward(Verdict(reward=reward).reward)


def test_differences_are_named_with_their_path() -> None:
    old, new = {"a": {"b": 1, "c": 2}, "d": 3, "e": {"f": 1}}, {"a": {"b": 1, "c": 5}, "g": 4, "e": 2}
    assert list(differences(old, new)) == [("a.c", 2, 5), ("d", 3, None), ("e", {"f": 1}, 2), ("g", None, 4)]
