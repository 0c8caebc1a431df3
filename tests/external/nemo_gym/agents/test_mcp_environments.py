"""Tools over MCP: NeMo Gym's MCPResourcesServer, and a FastMCP server with sessions and event streams."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.types import Json
from tests.external.nemo_gym.agents.conftest import FullScript, Gym
from tests.support.in_process import calls, says

SENTENCE = "The weather in {} is sunny and 72 F."


def weather(city: str) -> Json:
    params = {"input": f"Use get_weather for {city}.", "tools": []}
    return {"responses_create_params": params, "verifier_metadata": {"expected_city": city}}


@pytest.mark.parametrize(("asked", "reward"), [("Paris", 1.0), ("PARIS", 1.0), ("Tokyo", 0.0)])
async def test_nemo_gyms_weather_environment_is_played_over_mcp(gym: Gym, asked: str, reward: float) -> None:
    script = FullScript([[calls("get_weather", {"city": asked})], [says(SENTENCE.format(asked))]])
    async with gym.our_agent("weather", script, SimpleAgent) as stack:
        rollout = await stack.run(weather("Paris"))
    offered = script.requests[0]["tools"]
    assert [tool["name"] for tool in offered] == ["get_weather"]
    assert list(offered[0]["parameters"]["properties"]) == ["city"]
    assert rollout["response"]["output"][1]["output"] == SENTENCE.format(asked)
    assert (rollout["tool_call_seen"], rollout["reward"]) == (reward == 1.0, reward)


async def test_sessions_of_concurrent_episodes_are_separate(gym: Gym) -> None:
    cities = ["Paris", "Tokyo", "Nairobi", "Toronto"]

    async def played(city: str, asked: str) -> float:
        script = FullScript([[calls("get_weather", {"city": asked})], [says(SENTENCE.format(city))]])
        async with gym.our_agent("weather", script, SimpleAgent) as stack:
            reward: float = (await stack.run(weather(city)))["reward"]
            return reward

    right = await asyncio.gather(*(played(city, city) for city in cities))
    wrong = await asyncio.gather(*(played(city, "Rome") for city in cities))
    assert (right, wrong) == ([1.0] * 4, [0.0] * 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (calls("get_weather", {}), "Field required"),
        (calls("get_weather", {"city": 5}), "valid string"),
        (calls("no_such_tool", {}), "Not Found"),
    ],
)
async def test_a_mistake_of_the_model_is_text_for_the_model(gym: Gym, call: Json, words: str) -> None:
    script = FullScript([[call], [says("sorry")]])
    async with gym.our_agent("weather", script, SimpleAgent) as stack:
        rollout = await stack.run(weather("Paris"))
    assert words in rollout["response"]["output"][1]["output"]
    assert rollout["reward"] == 0.0


async def test_a_fastmcp_server_that_is_not_announced_is_found_and_answers_with_event_streams(gym: Gym) -> None:
    turns = [[calls("add", {"a": 2, "b": 3}, "a"), calls("fail", {"reason": "too bad"}, "b")], [says("5")]]
    script = FullScript(turns)
    async with gym.our_agent("fastmcp", script, SimpleAgent) as stack:
        rollout = await stack.run({"responses_create_params": {"input": "Add."}})
    assert [tool["name"] for tool in script.requests[0]["tools"]] == ["add", "fail"]
    items = rollout["response"]["output"]
    results = [item["output"] for item in items if item["type"] == "function_call_output"]
    assert results[0] == "5"
    assert "too bad" in results[1]
