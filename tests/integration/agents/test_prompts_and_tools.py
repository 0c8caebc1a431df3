"""Rows that leave the prompt and the tools to the environment, and rows that do not."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson
import pytest

from rollyard.agents.game_agent.app import GameAgent
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, ToolResult, Verdict, Verification, tool
from tests.support.fixtures import failure_of
from tests.support.in_process import Script, calls, environment, episode_servers, says


class Plain(Environment[EnvironmentSettings]):
    """One tool, no prompts."""

    @tool
    async def guess(self, number: int) -> ToolResult:
        """Guess a number."""
        return ToolResult({"hint": "right"}, done=True)

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)


class Prompted(Plain):
    system_prompt: ClassVar[str | None] = "Be brief."
    user_template: ClassVar[str | None] = r"{question} Put the answer in \boxed{}, like {{this}}."


SYSTEM = {"role": "system", "content": "Be brief."}
OWN_TOOL = {"type": "function", "name": "own", "parameters": {"type": "object", "properties": {}}}


async def played(kind: type[Environment[Any]], row: Json, **settings: Any) -> tuple[Json, Json]:
    script = Script([[says("done")]])
    async with episode_servers(environment(kind, **settings), script, GameAgent) as stack:
        return await stack.run(row), script.requests[0]


def names(request: Json) -> list[str]:
    return [offered["name"] for offered in request["tools"]]


async def test_a_row_without_tools_gets_the_environments_tools_and_the_rollout_records_them() -> None:
    rollout, request = await played(Plain, {"responses_create_params": {"input": "Play."}})
    assert names(request) == ["guess"]
    assert rollout["responses_create_params"] == {"input": "Play.", "tools": request["tools"]}


@pytest.mark.parametrize("tools", [[], [OWN_TOOL]])
async def test_the_tools_of_a_row_are_used_unchanged_even_if_the_list_is_empty(tools: list[Json]) -> None:
    rollout, request = await played(Plain, {"responses_create_params": {"input": "Play.", "tools": tools}})
    assert request["tools"] == tools
    assert rollout["responses_create_params"]["tools"] == tools


@pytest.mark.parametrize("params", [{}, {"responses_create_params": {"temperature": 0}}])
async def test_a_row_may_consist_of_a_question_only(params: Json) -> None:
    rollout, request = await played(Prompted, {"question": "2 + {2}?", **params})
    prompt = r"2 + {2}? Put the answer in \boxed{}, like {this}."
    assert request["input"] == [SYSTEM, {"role": "user", "content": prompt}]
    assert rollout["responses_create_params"]["input"] == request["input"]
    assert rollout["question"] == "2 + {2}?"


@pytest.mark.parametrize(
    "params",
    [
        {"input": [{"role": "system", "content": "Mine."}, {"role": "user", "content": "Go."}]},
        {"input": [{"role": "developer", "content": "Mine."}, {"role": "user", "content": "Go."}]},
        {"input": [{"role": "user", "content": "Go."}], "instructions": "Mine."},
    ],
)
async def test_a_row_with_its_own_system_prompt_gets_no_second_one(params: Json) -> None:
    _, request = await played(Prompted, {"responses_create_params": params})
    assert request["input"] == params["input"]


async def test_settings_override_the_environments_prompts_and_an_empty_text_disables_them() -> None:
    _, request = await played(Prompted, {"question": "2?"}, user_template="Q: {question}", system_prompt="")
    assert request["input"] == [{"role": "user", "content": "Q: 2?"}]


async def refusal(kind: type[Environment[Any]], row: Json) -> Failure:
    async with episode_servers(kind, Script([[says("no")]]), GameAgent) as stack:
        failure = await failure_of(stack.run(row))
        assert stack.servers["environment"].sessions == 0
    assert failure.kind is FailureKind.BAD_TASK
    return failure


@pytest.mark.parametrize(("row", "state"), [({"answer": "4"}, "missing"), ({"question": None, "a": 1}, "null")])
async def test_a_row_without_a_field_of_the_template_is_a_bad_task_that_names_it(row: Json, state: str) -> None:
    failure = str(await refusal(Prompted, row))
    assert "'question'" in failure and state in failure


@pytest.mark.parametrize("params", [{}, {"responses_create_params": {"input": []}}])
async def test_a_row_without_any_prompt_is_a_bad_task_of_the_environment(params: Json) -> None:
    failure = await refusal(Plain, {"question": "2?", **params})
    assert "user_template" in failure.problem.detail
    assert failure.problem.server == "environment"


async def test_a_system_prompt_alone_is_not_enough_to_ask_the_model() -> None:
    class Stern(Plain):
        system_prompt: ClassVar[str | None] = "Be brief."

    await refusal(Stern, {"question": "2?"})


async def test_a_tool_result_with_done_ends_the_episode() -> None:
    script = Script([[calls("guess", {"number": 1})], [says("never")]])
    async with episode_servers(Plain, script, GameAgent) as stack:
        rollout = await stack.run({"responses_create_params": {"input": "Play."}})
    assert rollout["finish_reason"] == "done"
    assert orjson.loads(rollout["response"]["output"][1]["output"]) == {"hint": "right", "done": True}


PICTURE = {"type": "input_image", "image_url": "data:,"}


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (ToolResult("you won", done=True), {"output": "you won", "done": True}),
        (ToolResult({"hint": "higher"}), {"hint": "higher", "done": False}),
        (ToolResult([1]), {"output": [1], "done": False}),
        (ToolResult([PICTURE]), [PICTURE]),
        (ToolResult([PICTURE], done=True), [PICTURE, {"type": "input_text", "text": '{"done": true}'}]),
    ],
    ids=str,
)
def test_a_tool_result_serializes_done_beside_its_output(result: ToolResult, answer: Any) -> None:
    assert result.json == answer


async def test_a_rollout_has_success_and_reward_components_only_if_the_environment_returns_them() -> None:
    class Parts(Plain):
        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=1.5, success=True, reward_components={"right": 1, "brief": 0.5}, note=None)

    row = {"responses_create_params": {"input": "Play."}}
    bare, _ = await played(Plain, row)
    full, _ = await played(Parts, row)
    assert not {"success", "reward_components"} & bare.keys()
    assert (full["success"], full["reward_components"], full["note"]) == (True, {"right": 1.0, "brief": 0.5}, None)
