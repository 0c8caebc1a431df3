"""Tasksets of the real package verifiers as environments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.verifiers_environment.app import VerifiersEnvironment
from tests.support.in_process import Script, agent, calls, environment, in_process_servers, says

TASKSET = "counting_taskset"


async def play(turns: Any, row: Json, **settings: Any) -> tuple[Json, Script]:
    script = Script(turns)
    made = environment(VerifiersEnvironment, **{"taskset": TASKSET, **settings})
    servers = {"environment": made, "model": script.model, "agent": agent(SimpleAgent)}
    async with in_process_servers(servers) as stack:
        return await stack.run(row), script


def outputs(row: Json) -> list[str]:
    return [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]


@pytest.mark.smoke
async def test_tools_change_the_state_that_the_rewards_read() -> None:
    turns = [calls("counter_add", {"times": 1}), calls("counter_add", {"times": 1}), says("It is at 4.")]
    row, script = await play(turns, {"task_index": 1})
    assert outputs(row) == ["the counter is at 2", "the counter is at 4"]
    assert (row["reward"], row["reward_components"]) == (3.0, {"reached": 2.0, "said": 1.0})
    assert row["metrics"] == {"turns": 3.0}
    assert [item["role"] for item in script.requests[0]["input"]] == ["system", "user"]
    assert script.requests[0]["tools"][0]["name"] == "counter_add"


async def test_an_answer_without_tools_gets_its_part_of_the_reward() -> None:
    row, _ = await play([says("4")], {"task_index": 1})
    assert (row["reward"], row["reward_components"]) == (1.0, {"reached": 0.0, "said": 1.0})


@pytest.mark.parametrize(
    "call", [calls("fly", {}), calls("counter_add", {"times": "many"}), calls("counter_add", {"times": -1})]
)
async def test_an_invalid_call_is_words_for_the_model(call: Json) -> None:
    row, _ = await play([call, calls("counter_add", {"times": 1}), says("2")], {"task_index": 0})
    assert "error" in outputs(row)[0]
    assert row["reward"] == 3.0


async def test_episodes_at_once_have_a_state_each() -> None:
    def turn(request: Json) -> Any:
        done = sum(item.get("type") == "function_call" for item in request["input"])
        target = int(str(request["input"][1]["content"]).rstrip(".").split()[-1])
        return calls("counter_add", {"times": 1}) if 2 * done < target else says(str(target))

    script = Script(turn)
    servers = {
        "environment": environment(VerifiersEnvironment, taskset=TASKSET, arguments={"size": 10}),
        "model": script.model,
        "agent": agent(SimpleAgent, max_steps=30),
    }
    async with in_process_servers(servers) as stack:
        rows = await asyncio.gather(*(stack.run({"task_index": number % 10}) for number in range(40)))
    assert {row["reward"] for row in rows} == {3.0}


async def test_an_answer_that_is_too_expensive_to_score_is_wrong() -> None:
    row, _ = await play([says("sleep 2")], {"task_index": 0}, scoring_timeout_s=0.3)
    assert (row["reward"], row["scoring_timed_out"]) == (0.0, True)


@pytest.mark.parametrize("row", [{}, {"task_index": 3}, {"task_index": -1}, {"task_index": "a"}])
async def test_a_row_without_a_task_is_a_bad_task(row: Json) -> None:
    with pytest.raises(Failure) as raised:
        await play([says("x")], row)
    assert raised.value.kind is FailureKind.BAD_TASK


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"taskset": "no_such_taskset"}, "cannot be loaded"),
        ({"arguments": {"colour": "red"}}, "cannot be loaded"),
        ({"arguments": {"size": 0}}, "has no tasks"),
    ],
)
async def test_a_taskset_that_cannot_be_played_is_refused_at_the_start(settings: Any, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        await play([says("x")], {"task_index": 0}, **settings)
