"""What an author's methods return by mistake is named in the failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollyard import Environment, Verdict, Verification
from rollyard.services.errors import Failure
from rollyard.testing import play


class Slip(Environment[Any]):
    """Returns what a test wrote into its row."""

    user_template = "Hello."

    async def seed(self) -> Any:
        return self.task.get("seed")

    async def verify(self, response: Verification) -> Any:
        return self.task.get("verify", Verdict(reward=1.0))


class TurnSlip(Slip):
    """Turn-based."""

    async def reset(self) -> tuple[str, dict[str, Any]]:
        return "start", {}

    async def turn(self, text: str) -> Any:
        return self.task["turn"]


@pytest.mark.parametrize("returned", ["look", {"role": "user", "content": "look"}, ["look"]])
def test_an_observation_that_is_not_a_list_of_items_is_a_failure(returned: Any) -> None:
    with pytest.raises(Failure, match=r"seed returned .*; expected a list of items"):
        asyncio.run(play(Slip, {"seed": returned}, ["Hi."]))


@pytest.mark.parametrize("returned", [None, 1.0, {"reward": 1.0}])
def test_a_verdict_of_another_type_is_a_failure_that_says_so(returned: Any) -> None:
    with pytest.raises(Failure, match=r"verify returned .*; expected a Verdict"):
        asyncio.run(play(Slip, {"verify": returned}, ["Hi."]))


def test_a_turn_of_another_type_is_a_failure_that_says_so() -> None:
    with pytest.raises(Failure, match=r"turn returned .*; expected a Turn"):
        asyncio.run(play(TurnSlip, {"turn": ["over", 1.0]}, ["Hi."]))


def test_a_verdict_cannot_replace_the_recorded_response() -> None:
    class Replacing(Slip):
        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=1.0, response=response.text)

    with pytest.raises(Failure, match="the field response, which the rollout has"):
        asyncio.run(play(Replacing, {}, ["Hi."]))


def test_a_part_of_the_reward_must_be_finite() -> None:
    class Infinite(Slip):
        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=1.0, reward_components={"length": float("nan")})

    with pytest.raises(Failure, match=r"reward_components\.length"):
        asyncio.run(play(Infinite, {}, ["Hi."]))


def test_a_template_may_name_a_field_in_any_language() -> None:
    class Named(Slip):
        user_template = "{größe}?"

    rollout = asyncio.run(play(Named, {"größe": "3"}, ["Hi."]))
    assert rollout.requests[0]["input"][0]["content"] == "3?"
