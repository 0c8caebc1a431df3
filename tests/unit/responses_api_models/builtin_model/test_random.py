"""Randomness in the built-in model: what a seed fixes, what differs, how results spread; openai is never imported."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from rollyard import Environment, Verdict, Verification, tool
from rollyard.records.types import Json
from rollyard.resources_servers.tools import tools_of
from rollyard.responses_api_models.builtin_model.app import callable_tools, random_turn
from rollyard.responses_api_models.builtin_model.policy import RandomDraws
from tests.support.builtin_environment import (
    EASY,
    ModelServer,
    conversation_with,
    fewest_moves,
    random_boards,
)

SOLVABLE = [board for board in random_boards(120, seed=11) if (fewest_moves(board) or 99) <= 6]


def without_time(response: Json) -> Json:
    return {name: value for name, value in response.items() if name != "created_at"}


async def test_the_same_seed_gives_the_same_answer_with_the_same_ids_from_any_server() -> None:
    first = await ModelServer().respond(conversation_with(EASY), temperature=0.8, seed=3)
    again = await ModelServer().respond(conversation_with(EASY), temperature=0.8, seed=3)
    assert without_time(first) == without_time(again)


async def test_the_seed_may_be_in_nemo_gyms_extra_body() -> None:
    policy = ModelServer()
    direct = await policy.respond(conversation_with(EASY), temperature=0.8, seed=3)
    in_extra_body = await policy.respond(
        conversation_with(EASY), temperature=0.8, metadata={"extra_body": '{"seed": 3}'}
    )
    assert direct["output"] == in_extra_body["output"]


async def test_answers_depend_neither_on_order_nor_on_concurrency() -> None:
    jobs = [(board, seed) for board in SOLVABLE[:10] for seed in range(4)]
    one_by_one = ModelServer()
    expected = {job: (await one_by_one.play(job[0], temperature=0.8, seed=job[1]))[1] for job in jobs}
    random.Random(1).shuffle(jobs)
    together = ModelServer()
    played = await asyncio.gather(*(together.play(board, temperature=0.8, seed=seed) for board, seed in jobs))
    assert {job: items for job, (_, items) in zip(jobs, played, strict=True)} == expected


async def test_the_ids_of_earlier_items_have_no_effect() -> None:
    policy = ModelServer()
    items = conversation_with(EASY)
    renamed = [{**item, "id": "other", "call_id": "other"} if "call_id" in item else item for item in items]
    one = await policy.respond(items, temperature=0.8, seed=3)
    other = await policy.respond(renamed, temperature=0.8, seed=3)
    assert one["output"] == other["output"]


async def test_episodes_without_a_seed_differ() -> None:
    policy = ModelServer()
    ids = [(await policy.respond(conversation_with(EASY), temperature=0.8))["id"] for _ in range(20)]
    moves = {(await policy.play(EASY, temperature=0.8))[0].board() for _ in range(40)}
    assert len(set(ids)) == 20 and len(moves) > 1


async def test_the_servers_own_seed_changes_the_answers() -> None:
    one = [(await ModelServer(seed=1).play(EASY, temperature=0.8, seed=seed))[1] for seed in range(10)]
    other = [(await ModelServer(seed=2).play(EASY, temperature=0.8, seed=seed))[1] for seed in range(10)]
    assert one != other


@pytest.mark.parametrize(("temperature", "low", "high"), [(0.3, 0.75, 0.97), (0.8, 0.5, 0.75), (1.5, 0.3, 0.6)])
async def test_the_success_rate_falls_as_the_temperature_rises(temperature: float, low: float, high: float) -> None:
    policy = ModelServer()
    games = [
        (await policy.play(board, temperature=temperature, seed=index))[0] for index, board in enumerate(SOLVABLE * 3)
    ]
    assert low < sum(game.solved(game.state) for game in games) / len(games) < high
    assert any(game.moves == 0 for game in games)


def test_no_model_server_imports_the_openai_package() -> None:
    package = "rollyard.responses_api_models"
    program = f"import sys, {', '.join(f'{package}.{kind}_model.app' for kind in ('openai', 'vllm', 'builtin'))}"
    done = subprocess.run([sys.executable, "-c", f"{program}\nassert 'openai' not in sys.modules"], check=False)
    assert done.returncode == 0


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
    ("choice", "names"), [("none", []), ("auto", ["buy", "sell"]), ({"type": "function", "name": "sell"}, ["sell"])]
)
def test_the_tool_choice_is_respected(choice: Any, names: list[str]) -> None:
    tools = [BUY.schema(), {**BUY.schema(), "name": "sell"}, {"type": "web_search"}]
    assert [tool["name"] for tool in callable_tools({"tools": tools, "tool_choice": choice})] == names
