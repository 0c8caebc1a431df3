"""The model reads of NeMo Gym's tools what NeMo Gym's own simple_agent gives it."""

from __future__ import annotations

import pytest

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.types import Json
from tests.external.nemo_gym.agents.conftest import FullScript, Gym
from tests.support.in_process import calls, says

ROW: Json = {"responses_create_params": {"input": "Go.", "tools": []}}


def outputs(rollout: Json) -> list[str]:
    items = rollout["response"]["output"]
    return [item["output"] for item in items if item["type"] == "function_call_output"]


def script_of(*tools: tuple[str, object]) -> FullScript:
    turns = [[calls(name, arguments, f"c{index}")] for index, (name, arguments) in enumerate(tools)]
    return FullScript([*turns, [says("ok")]])


BREAKING: tuple[tuple[str, object], ...] = (
    *(("raises", {}), ("rejects", {"city": "Paris"}), ("rejects", {"town": 1}), ("text", {}), ("plain", {})),
    *(("absent", {}), ("counts", {}), ("counts", {})),
)


async def test_every_answer_of_a_tool_is_the_same_under_both_agents(gym: Gym) -> None:
    theirs = outputs(await gym.their_rollout("breaking_agent", script_of(*BREAKING), ROW))
    async with gym.our_agent("breaking", script_of(*BREAKING), SimpleAgent) as stack:
        ours = outputs(await stack.run(ROW))
    assert ours == theirs
    assert ours[0] == '"ValueError(\\"no \'such\' table\\")"'
    assert ours[-2:] == ['{"count":1}', '{"count":2}']


@pytest.mark.parametrize(("expected", "reward"), [pytest.param(7, 1.0, marks=pytest.mark.smoke), (8, 0.0)])
async def test_the_session_lives_in_cookies_of_seed_tools_and_verify(gym: Gym, expected: int, reward: float) -> None:
    row = {**ROW, "initial_count": 3, "expected_count": expected}
    tools: tuple[tuple[str, object], ...] = (("increment_counter", {"count": 4}), ("get_counter_value", {}))
    theirs = await gym.their_rollout("counter_agent", script_of(*tools), row)
    async with gym.our_agent("counter", script_of(*tools), SimpleAgent) as stack:
        ours = await stack.run(row)
    assert ours["reward"] == theirs["reward"] == reward
    assert outputs(ours) == outputs(theirs) == ['{"success":true}', '{"count":7}']
