"""The built-in policy calls unknown tools with arguments that their schemas allow."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import orjson
import pytest
from pydantic import BaseModel, Field

from rollyard import Environment, Verdict, Verification, tool
from rollyard.resources_servers.tools import tools_of
from rollyard.responses_api_models.builtin_model.random_calls import callable_tools, random_turn
from rollyard.responses_api_models.builtin_model.random_draws import RandomDraws
from rollyard.testing import calls
from tests.support.builtin_environment import ModelServer


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Tree(BaseModel):
    name: str
    below: list[Tree] = []


class Shop(Environment):  # type: ignore[type-arg]
    @tool
    async def buy(
        self,
        count: Annotated[int, Field(ge=3, le=5)],
        price: Annotated[float, Field(gt=0, lt=2)],
        colour: Colour,
        size: Literal["s", "m"],
        tags: Annotated[list[str], Field(min_length=1, max_length=2)],
        tree: Tree,
        gift: bool | None = None,
        extra: dict[str, int] | None = None,
    ) -> str:
        """Buy."""
        return ""

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=0)


BUY = tools_of(Shop)["buy"]


def test_arguments_match_the_signature() -> None:
    for number in range(100):
        turn = random_turn({}, [BUY.schema()], done=False, draws=RandomDraws(b"", str(number)))
        if turn.arguments is not None:
            assert turn.name == "buy"
            BUY.parse(turn.arguments.encode())  # raises InvalidToolCall if they do not match


def test_it_answers_with_text_when_done_and_in_one_turn_of_eight() -> None:
    def text_turns(*, done: bool, **request: Any) -> int:
        draws = (RandomDraws(b"", str(number)) for number in range(120))
        return sum(random_turn(request, [BUY.schema()], done=done, draws=each).arguments is None for each in draws)

    assert text_turns(done=True) == 120
    assert 5 < text_turns(done=False) < 30
    assert text_turns(done=False, tool_choice="required") == 0


@pytest.mark.parametrize(
    ("choice", "names"),
    [("none", []), ("auto", ["buy", "sell"]), ({"type": "function", "name": "sell"}, ["sell"])],
)
def test_the_tool_choice_is_respected(choice: Any, names: list[str]) -> None:
    tools = [BUY.schema(), {**BUY.schema(), "name": "sell"}, {"type": "web_search"}]
    assert [tool["name"] for tool in callable_tools({"tools": tools, "tool_choice": choice})] == names


async def test_it_calls_an_unknown_tool_and_answers_when_the_environment_is_done() -> None:
    policy = ModelServer()
    first = await policy.respond("Buy.", tools=(BUY.schema(),), tool_choice="required", temperature=0)
    assert first["output"][0]["name"] == "buy"
    BUY.parse(orjson.dumps(orjson.loads(first["output"][0]["arguments"])))
    call = calls("buy", {}, "c1")
    done_output = {"type": "function_call_output", "call_id": "c1", "output": '{"done": true}'}
    second = await policy.respond([{"role": "user", "content": "Buy."}, call, done_output], tools=(BUY.schema(),))
    assert second["output"][0]["type"] == "message"
