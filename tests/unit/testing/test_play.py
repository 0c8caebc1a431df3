"""rollyard.testing: what `play` accepts and what it rejects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollyard import BadTask, Environment, EnvironmentSettings, ToolResult, Turn, Verdict, Verification, serve, tool
from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.errors import Failure, OperatorError
from rollyard.records.data_files import INSTALLED
from rollyard.testing import Turns, calls, load, play, says


class Settings(EnvironmentSettings):
    bonus: float = 0.0


class Door(Environment[Settings]):
    user_template = "Open the door to {room}."

    @tool
    async def push(self, times: int = 1) -> ToolResult:
        """Push the door."""
        return ToolResult("open", done=times > 1)

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0 + self.settings.bonus, text=response.text)


class Counter(Environment):  # type: ignore[type-arg]
    async def reset(self) -> tuple[str, dict[str, Any]]:
        return "Count.", {}

    async def turn(self, text: str) -> Turn:
        return Turn("more", terminated=text == "3")

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=3.0)


ROW = {"room": "7"}


async def test_a_turn_may_be_text_one_item_several_items_or_a_function() -> None:
    turns: Turns = [
        [says("Two pushes."), calls("push"), calls("push", {"times": 1})],
        lambda request: calls("push", times=len(request["input"])),
    ]
    rollout = await play(Door, ROW, turns, settings={"bonus": 0.5})
    assert [item["type"] for item in rollout.items] == [
        *("message", "function_call", "function_call", "function_call_output", "function_call_output"),
        *("function_call", "function_call_output"),
    ]
    assert (rollout.reward, rollout.finish_reason, rollout["text"]) == (1.5, "done", "Two pushes.")
    assert rollout.requests[0]["input"] == [{"role": "user", "content": "Open the door to 7."}]


async def test_the_turn_agent_plays_turn_based_environments() -> None:
    rollout = await play(Counter, {}, turns=["1", "2", "3"])
    assert (rollout.reward, rollout.finish_reason, len(rollout.requests)) == (3.0, "done", 3)


async def test_a_custom_agent_gets_its_settings() -> None:
    rollout = await play(
        serve(Door), ROW, lambda request: calls("push", times=2), agent=SimpleAgent, agent_settings={"max_steps": 2}
    )
    assert (rollout.finish_reason, len(rollout.requests)) == ("max_steps", 2)


async def test_the_error_for_a_short_script_counts_the_model_requests() -> None:
    with pytest.raises(Failure, match=r"1 turn, .* 2 times"):
        await play(Door, ROW, turns=[calls("push")])


async def test_an_environment_failure_is_raised() -> None:
    class Refusing(Door):
        async def seed(self) -> list[dict[str, Any]]:
            raise BadTask("no such room")

    with pytest.raises(Failure, match="bad_task: no such room"):
        await play(Refusing, ROW, turns=["?"])


@pytest.mark.parametrize(
    ("environment", "settings", "message"),
    [
        (Door, {"bonsu": 1}, "did you mean 'bonus'"),
        (SimpleAgent, {}, "is not an environment"),
        ("/nowhere/at_all", {}, "is named 'nowhere'; expected one of resources_servers"),
        (INSTALLED / "agents/simple_agent", {}, "is not an environment"),
    ],
)
async def test_an_invalid_environment_or_setting_is_an_operator_error(
    environment: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(OperatorError, match=message):
        await play(environment, ROW, turns=["?"], settings=settings)


def test_load_takes_a_plugin_folder_with_relative_imports(tmp_path: Path) -> None:
    assert load(INSTALLED / "agents/simple_agent") is SimpleAgent
    folder = tmp_path / "resources_servers/mine"
    folder.mkdir(parents=True)
    (folder / "rules.py").write_text("REWARD = 2.0\n")
    (folder / "app.py").write_text(
        "from rollyard import Environment, serve\nfrom .rules import REWARD\n"
        "class Mine(Environment):\n    reward = REWARD\nserver = serve(Mine)\n"
    )
    assert load(folder).reward == 2.0


@pytest.mark.parametrize("turns", ["Hello.", says("Hello."), None, 5])
async def test_one_turn_instead_of_a_list_of_turns_is_refused(turns: Any) -> None:
    with pytest.raises(OperatorError, match=r"turns is .*; expected"):
        await play(Door, ROW, turns)


async def test_a_lifespan_may_call_the_scripted_models() -> None:
    class Greeted(Door):
        @classmethod
        @asynccontextmanager
        async def lifespan(cls, settings: Settings) -> AsyncIterator[str]:
            response = await cls.models.respond("greeter", {"input": "Greet."})
            yield response["output"][0]["content"][0]["text"]

        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=1.0, greeting=self.shared)

    rollout = await play(Greeted, ROW, ["Done."], models={"greeter": ["Hello."]})
    assert rollout["greeting"] == "Hello."
