"""Rollouts that trainers ask for are played as ng_collect_rollouts plays them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.types import Json
from rollyard.services.datasets.mixture import Rollout
from rollyard.training.groups import GroupMember, Treatment
from rollyard.training.trl.episodes import Episodes, PlaySettings
from tests.external.training.scripted_agent import AT_ONCE, Agent, Answer, broken, solved, stack_of
from tests.unit.training.recorded_turns import row, turn


async def play(
    answer: Answer, repeats: int = 1, records: list[bytes] | None = None, **settings: Any
) -> tuple[list[GroupMember], Agent]:
    agent = Agent(answer)
    record = ([] if records is None else records).append
    episodes = Episodes(stack_of(agent), PlaySettings(pauses=AT_ONCE, **settings), record)
    task = {"responses_create_params": {"input": "Solve it.", "temperature": 0.5}, "seed": 7}
    rollouts = [Rollout(0, repeat, "player", task) for repeat in range(repeats)]
    return await episodes.play_all(rollouts, {"temperature": 1.0, "top_p": 1.0}), agent


async def test_all_repeats_are_played_and_recorded_in_order() -> None:
    records: list[bytes] = []
    members, agent = await play(solved, 5, records, parallel=2, params={"top_p": 0.9})
    assert [member.reward for member in members] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [member.repeat for member in members] == [0, 1, 2, 3, 4] and len({one.task_key for one in members}) == 1
    assert agent.most_in_flight == 2
    assert agent.requests[0]["responses_create_params"] == {"input": "Solve it.", "temperature": 1.0, "top_p": 0.9}
    assert sorted(orjson.loads(line)["_ng_rollout_index"] for line in records) == [0, 1, 2, 3, 4]


async def test_a_failed_rollout_is_repeated_as_a_whole() -> None:
    async def answer(request: Json, attempt: int) -> Json:
        if attempt < 3:
            raise Failure(FailureKind.SERVER_ERROR, "the server stopped", server="environment")
        return await solved(request, attempt)

    (member,), agent = await play(answer)
    assert member.treatment is Treatment.PLAYED and len(agent.requests) == 3


async def test_a_rollout_that_fails_in_every_attempt_is_left_out() -> None:
    (member,), agent = await play(broken(FailureKind.SERVER_ERROR, "environment"), max_failure_rate=1.0)
    assert member.treatment is Treatment.LEFT_OUT and not member.sequences and len(agent.requests) == 3


async def test_a_policy_that_is_too_slow_gets_reward_0_and_no_second_attempt() -> None:
    (member,), agent = await play(broken(FailureKind.TIMEOUT, "policy_model"), max_failure_rate=1.0)
    assert member.treatment is Treatment.ZERO and len(agent.requests) == 1


async def test_training_stops_if_too_many_rollouts_fail() -> None:
    with pytest.raises(RunError, match=r"4 of 4 rollouts .*server_error"):
        await play(broken(FailureKind.SERVER_ERROR, "environment"), 4)


async def test_training_stops_if_the_agent_is_gone() -> None:
    with pytest.raises(RunError, match="player"):
        await play(broken(FailureKind.UNREACHABLE, "player"))


async def test_training_stops_if_something_but_the_policy_constrained_its_tokens() -> None:
    async def answer(request: Json, attempt: int) -> Json:
        return row(turn([1], [2], temperature=None), reward=1.0)

    with pytest.raises(RunError, match=r"player .*turn 1 of 1"):
        await play(answer)
