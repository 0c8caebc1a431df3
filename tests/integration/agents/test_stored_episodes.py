"""Agents that get a stored rollout: they ask for a verdict on it, and never call the model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import orjson
import pytest

from rollyard.agents.game_agent.app import GameAgent
from rollyard.agents.program_agent.app import ProgramAgent
from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.agents.turn_agent.app import TurnAgent
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Turn, Verdict, Verification, tool
from rollyard.services.http.request import raise_for_status
from rollyard.services.rollouts.run_answer import REPLAY_HEADER
from tests.support.in_process import InProcessServers, Script, calls, episode_servers, says

ROW: Json = {
    "responses_create_params": {"input": "Play."},
    "level": 3,
    "agent_ref": {"name": "agent"},
    "_ng_task_index": 5,
    "_ng_rollout_index": 2,
}
EPISODE = Script([[says("thinking"), calls("add", {"amount": 2}, "a")], [calls("add", {"amount": 1}, "b")]])


class Counter(Environment[EnvironmentSettings]):
    factor = 1.0
    text: ClassVar[str] = "count"

    def __init__(self, task: Any, settings: EnvironmentSettings) -> None:
        super().__init__(task, settings)
        self.count = 0

    async def seed(self) -> list[Json]:
        return [{"role": "user", "content": "The count is 0."}]

    @tool
    async def add(self, amount: int = 1) -> Json:
        """Add to the count."""
        self.count += amount
        return {self.text: self.count, "done": self.count >= self.task["level"]}

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=self.factor * self.count, success=self.count >= self.task["level"], words="counted")


class Double(Counter):
    """Another verifier of the same episodes."""

    factor = 2.0


class Renamed(Counter):
    """Its tool answers something else."""

    text = "total"


class Judge(Environment[EnvironmentSettings]):
    """A verdict on the response alone."""

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(len(response.response["output"])))


@asynccontextmanager
async def replaying(hosted: type[Environment[Any]], kind: Any, **settings: Any) -> AsyncIterator[Callable[..., Any]]:
    """Send stored rollouts to an agent; its model would fail."""
    async with episode_servers(hosted, Script(_unwanted), kind, **settings) as stack:

        async def send(rollout: Mapping[str, Any]) -> Json:
            answer = await stack.post("agent", "/run", dict(rollout), {REPLAY_HEADER: "1"})
            raise_for_status(answer, "agent")
            assert answer.headers[REPLAY_HEADER] == "1"
            row: Json = orjson.loads(answer.body)
            return row

        yield send


def _unwanted(request: Json) -> Any:
    raise AssertionError("the model was called")


async def played(hosted: type[Environment[Any]], script: Script, kind: Any, row: Json = ROW, **settings: Any) -> Json:
    stack: InProcessServers
    async with episode_servers(hosted, Script(script.turns, status=script.status), kind, **settings) as stack:
        return dict(await stack.run(row))


async def test_a_replayed_episode_gets_the_verdict_of_the_new_environment_and_is_otherwise_unchanged() -> None:
    stored = await played(Counter, EPISODE, GameAgent)
    async with replaying(Double, GameAgent) as send:
        found = await send(stored)
    assert (stored["reward"], found["reward"], found["success"]) == (3.0, 6.0, True)
    assert {**found, "reward": 3.0} == stored
    assert list(found)[:5] == list(ROW)  # so that it can be verified once more


async def test_the_same_environment_gives_the_same_row() -> None:
    stored = await played(Counter, EPISODE, GameAgent)
    async with replaying(Counter, GameAgent) as send:
        assert await send(await send(stored)) == stored


async def test_an_environment_that_answers_otherwise_gives_no_verdict() -> None:
    stored = await played(Counter, EPISODE, GameAgent)
    async with replaying(Renamed, GameAgent) as send:
        with pytest.raises(Failure, match=r"turn 1.*total.*count.*is stored") as raised:
            await send(stored)
    assert raised.value.kind is FailureKind.BAD_TASK


async def test_a_program_cannot_play_a_stored_episode_again_and_gives_no_verdict() -> None:
    stored = await played(Counter, EPISODE, GameAgent)
    async with replaying(Counter, ProgramAgent, program=["true"]) as send:
        with pytest.raises(Failure, match="cannot play a rollout again") as raised:
            await send(stored)
    assert raised.value.kind is FailureKind.BAD_TASK


@pytest.mark.parametrize("max_steps", [1, 2])
async def test_a_loop_that_ends_earlier_than_the_stored_one_gives_no_verdict(max_steps: int) -> None:
    stored = await played(Counter, Script([[calls("add", {"amount": 0}, "a")]], repeat=True), GameAgent, max_steps=3)
    async with replaying(Counter, GameAgent, max_steps=max_steps) as send:
        with pytest.raises(Failure, match="ended before the last") as raised:
            await send(stored)
    assert raised.value.kind is FailureKind.BAD_TASK


async def test_a_loop_that_goes_on_after_the_stored_one_gives_no_verdict() -> None:
    stored = await played(Counter, Script([[calls("add", {"amount": 0}, "a")]], repeat=True), GameAgent, max_steps=3)
    async with replaying(Counter, GameAgent, max_steps=4) as send:
        with pytest.raises(Failure, match="continues after the 3 stored turns"):
            await send(stored)


async def test_another_first_observation_gives_no_verdict() -> None:
    stored = await played(Counter, EPISODE, GameAgent)
    stored["responses_create_params"]["input"][-1]["content"] = "The count is 7."
    async with replaying(Counter, GameAgent) as send:
        with pytest.raises(Failure, match="first observation"):
            await send(stored)


async def test_a_verdict_on_the_response_alone_needs_no_replay() -> None:
    stored = await played(Counter, EPISODE, GameAgent)
    async with replaying(Judge, SimpleAgent) as send:
        found = await send(stored)
    assert found["reward"] == len(stored["response"]["output"])
    assert found["response"] == stored["response"]
    assert "words" not in found and "success" not in found
    assert (found["finish_reason"], found["timings"]) == (stored["finish_reason"], stored["timings"])


async def test_an_answer_that_was_cut_off_is_verified_as_such() -> None:
    script = Script([[says("half of")]], status="incomplete")
    stored = await played(Judge, script, SimpleAgent)
    async with replaying(Judge, SimpleAgent) as send:
        assert await send(stored) == stored
    assert stored["finish_reason"] == "length"


@pytest.mark.parametrize(
    "response", [None, "text", {"choices": []}, {"output": "x"}, {"status": "failed", "output": []}, {"output": [7]}]
)
async def test_a_rollout_without_a_finished_response_gets_no_verdict(response: Any) -> None:
    async with replaying(Judge, SimpleAgent) as send:
        with pytest.raises(Failure, match="cannot be graded") as raised:
            await send({**ROW, "reward": 1.0, "response": response})
    assert raised.value.kind is FailureKind.BAD_TASK


async def test_of_a_row_of_another_program_the_old_verdict_is_replaced() -> None:
    response = {"object": "response", "status": "completed", "output": [says("4")]}
    row = {"response": response, "reward": 0.5, "mask_sample": True, "failure_kind": "judge_failed", **ROW}
    async with replaying(Judge, SimpleAgent) as send:
        found = await send(row)
    assert found["reward"] == 1.0 and not {"mask_sample", "failure_kind"} & found.keys()
    assert (found["level"], found["response"]) == (3, response)


class Guess(Environment[EnvironmentSettings]):
    """Turn-based: the model guesses a number."""

    async def reset(self) -> tuple[str, Json]:
        return "A number from 1 to 9.", {}

    async def turn(self, text: str) -> Turn:
        is_right = text == str(self.task["level"])
        return Turn("right" if is_right else "wrong", self.reward(is_right), is_right)

    def reward(self, is_right: bool) -> float:
        return float(is_right)


class Penalty(Guess):
    def reward(self, is_right: bool) -> float:
        return 1.0 if is_right else -0.5


async def test_the_steps_of_a_turn_based_episode_are_rewarded_again() -> None:
    stored = await played(Guess, Script([[says("1")], [says("2")], [says("3")]]), TurnAgent)
    async with replaying(Penalty, TurnAgent) as send:
        found = await send(stored)
    assert (stored["step_rewards"], stored["reward"]) == ([0.0, 0.0, 1.0], 1.0)
    assert (found["step_rewards"], found["reward"], found["total_reward"]) == ([-0.5, -0.5, 1.0], 0.0, 0.0)


async def test_turns_without_an_action_are_replayed_as_such() -> None:
    script = Script([[says("hm")], [says("<guess>1</guess>")], [says("<guess>3</guess>")]])
    stored = await played(Guess, script, TurnAgent, action_tag="guess")
    async with replaying(Guess, TurnAgent, action_tag="guess") as send:
        assert await send(stored) == stored
    async with replaying(Guess, TurnAgent) as send:
        with pytest.raises(Failure, match="does not repeat the stored episode"):
            await send(stored)


async def test_every_session_of_a_replay_is_closed() -> None:
    stored = await played(Counter, EPISODE, GameAgent)
    async with episode_servers(Renamed, Script(_unwanted), GameAgent) as stack:
        await stack.post("agent", "/run", stored, {REPLAY_HEADER: "1"})
        assert stack.servers["environment"].sessions == 0
