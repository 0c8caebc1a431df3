"""The built-in model as an agent's policy: what it reads and what it answers."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import random
import subprocess
import sys
import time
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from openai.types.responses import Response
from pydantic import BaseModel, Field, ValidationError

from rollyard import Environment, Verdict, Verification, tool
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.resources_servers.tools import tools_of
from rollyard.responses_api_models.builtin_model.app import (
    BuiltinModel,
    BuiltinModelSettings,
    RandomDraws,
    callable_tools,
    random_turn,
)
from rollyard.services.http.request import HttpResponse
from tests.support.builtin_environment import (
    CORNERED,
    EASY,
    PROMPT,
    STEP_TOOL,
    ModelServer,
    conversation_with,
    fewest_moves,
    random_boards,
)
from tests.support.scripted_engine import model_server, post_json


@functools.cache
def boards() -> list[tuple[str, int | None]]:
    """Random boards with the fewest moves that solve them. Not at import, which every worker of the tests does."""
    return [(board, fewest_moves(board)) for board in random_boards(120, seed=7)]


def arguments(response: Json) -> Json:
    parsed: Json = json.loads(response["output"][0]["arguments"])
    return parsed


def text_of(response: Json) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def test_at_temperature_0_every_solvable_board_is_solved_in_the_fewest_moves() -> None:
    policy = ModelServer()
    solvable = [(board, best) for board, best in boards() if best]
    assert len(solvable) > 25
    for board, best in solvable:
        game, _ = await policy.play(board, temperature=0)
        assert game.solved(game.state) and game.moves == best, board


async def test_at_temperature_0_it_gives_up_an_unsolvable_board_without_a_move() -> None:
    policy = ModelServer()
    unsolvable = [board for board, best in boards() if best is None]
    assert len(unsolvable) > 25
    for board in unsolvable:
        game, items = await policy.play(board, temperature=0)
        assert game.moves == 0 and items[-1]["type"] == "message", board


async def test_the_final_answer_lists_the_moves_made() -> None:
    game, items = await ModelServer().play(EASY, temperature=0)
    assert game.solved(game.state)
    assert items[-1]["content"][0]["text"] == "<answer>Up || Right || Up || Left</answer>"


async def test_a_board_is_found_in_any_format() -> None:
    values: list[Any] = [EASY, {"observation": EASY, "done": False}, {"state": EASY, "reward": 0.0}]
    spaced = "\n".join(" ".join(row) for row in EASY.split("\n"))
    texts = [EASY, f"Here is the room:\n\n{EASY}\n\nYour move.", spaced, EASY.replace("\n", "\r\n")]
    for output in (*texts, *map(json.dumps, values)):
        answer = await ModelServer().respond(conversation_with(output), temperature=0)
        assert arguments(answer) == {"actions": ["Up"]}, output


async def test_it_requests_the_board_again_after_an_output_without_one() -> None:
    items = [*conversation_with(EASY), *conversation_with("unknown action 'Jump'")[2:]]
    assert arguments(await ModelServer().respond(items, temperature=0)) == {"actions": []}


async def test_it_gives_up_a_tool_that_never_shows_a_board() -> None:
    items = PROMPT + 3 * conversation_with("internal error")[2:]
    assert text_of(await ModelServer().respond(items, temperature=0)) == "<answer></answer>"


OUTPUTS = ["", "{", "null", "[1]", '"', "{}", '{"observation": null}', '{"observation": [1]}', "#", "###\n###\n###"]
EARLIER_CALLS = ["", "{", "null", "[]", '{"actions": 3}', '{"actions": [null, {}]}']


async def test_no_tool_output_or_earlier_call_causes_an_error() -> None:
    policy = ModelServer()
    for output, earlier_call in itertools.product(OUTPUTS, EARLIER_CALLS):
        for shown in (output, json.dumps({"observation": output, "done": True})):
            answer = await policy.respond(conversation_with(shown, earlier_call), temperature=0.8)
            assert answer["status"] == "completed", (shown, earlier_call)


@pytest.mark.parametrize("flag", ["done", "terminated", "truncated"])
async def test_an_episode_that_the_environment_ended_gets_a_final_answer(flag: str) -> None:
    output = json.dumps({"observation": CORNERED, flag: True})
    response = await ModelServer().respond(conversation_with(output, '{"actions": ["up", 3, "Jump"]}'), temperature=0)
    assert text_of(response) == "<answer>Up || Left</answer>"


async def test_a_board_in_a_text_without_a_tool_is_answered_with_an_action() -> None:
    items = [
        {"role": "user", "content": CORNERED},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": EASY},
    ]
    assert text_of(await ModelServer().respond(items, tools=(), temperature=0)) == "<action>Up</action>"


async def test_every_answer_is_a_valid_openai_response() -> None:
    policy = ModelServer()
    bare = {"type": "function", "name": "step"}
    for items, tools in (
        (PROMPT, (STEP_TOOL,)),
        (PROMPT, (bare,)),
        ("Hello", ()),
        (conversation_with('{"done": true}'), (STEP_TOOL,)),
    ):
        response = await policy.respond(
            items, tools, temperature=0, top_p=0.9, instructions="Play.", metadata={"a": "b"}
        )
        checked = Response.model_validate(response, strict=True)
        assert checked.usage and checked.usage.total_tokens > 0 and checked.metadata == {"a": "b"}


async def test_an_invalid_parameter_is_refused_by_name() -> None:
    invalid: list[Json] = [{"temperature": "hot"}, {"temperature": -1}, {"metadata": {"extra_body": "{"}}]
    for parameter, message in zip(invalid, ("'hot'", "temperature is -1", "metadata.extra_body is '{'"), strict=True):
        answer = await ModelServer().post({"input": PROMPT, **parameter})
        assert answer.status == 400 and message in json.loads(answer.body)["detail"]


HELLO: Json = {"messages": [{"role": "user", "content": "hi"}]}
REFUSED: list[tuple[str, Json, str]] = [
    ("/v1/responses", {"previous_response_id": "resp_1"}, "previous_response_id: this server does not store"),
    ("/v1/responses", {"conversation": "conv_1"}, "conversation: this server does not store"),
    ("/v1/responses", {"background": True}, "background: this server does not store"),
    ("/v1/responses", {"top_logprobs": 2}, "top_logprobs: policy_model has no log-probabilities"),
    ("/v1/responses", {"include": ["message.output_text.logprobs"]}, "include: policy_model has no log-probabilities"),
    ("/v1/chat/completions", {**HELLO, "logprobs": True}, "include: policy_model has no log-probabilities"),
    ("/v1/chat/completions", {**HELLO, "logprobs": True, "top_logprobs": 3}, "top_logprobs: policy_model has no"),
]


@pytest.mark.parametrize(("path", "fields", "message"), REFUSED)
@pytest.mark.parametrize("stream", [False, True])
async def test_stored_conversations_and_log_probabilities_are_refused(
    path: str, fields: Json, message: str, stream: bool
) -> None:
    async with model_server(BuiltinModel) as server:
        answer, problem = await post_json(server, path, {"input": "hi", **fields, "stream": stream})
    assert answer.status == 400 and message in problem["detail"]


SOLVABLE = [board for board in random_boards(120, seed=11) if (fewest_moves(board) or 99) <= 6]


def without_time(response: Json) -> Json:
    return {name: value for name, value in response.items() if name != "created_at"}


async def test_the_same_seed_gives_the_same_answer_with_the_same_ids_from_any_server() -> None:
    first = await ModelServer().respond(conversation_with(EASY), temperature=0.8, seed=3)
    again = await ModelServer().respond(conversation_with(EASY), temperature=0.8, seed=3)
    assert without_time(first) == without_time(again)
    nemo_gyms = {"extra_body": '{"seed": 3}'}
    in_metadata = await ModelServer().respond(conversation_with(EASY), temperature=0.8, metadata=nemo_gyms)
    assert first["output"] == in_metadata["output"]


async def test_answers_depend_neither_on_order_nor_on_concurrency() -> None:
    jobs = [(board, seed) for board in SOLVABLE[:10] for seed in range(4)]
    one_by_one = ModelServer()
    expected = {job: (await one_by_one.play(job[0], temperature=0.8, seed=job[1]))[1] for job in jobs}
    random.Random(1).shuffle(jobs)
    together = ModelServer()
    played = await asyncio.gather(*(together.play(board, temperature=0.8, seed=seed) for board, seed in jobs))
    assert {job: items for job, (_, items) in zip(jobs, played, strict=True)} == expected


async def test_episodes_without_a_seed_differ() -> None:
    policy = ModelServer()
    ids = [(await policy.respond(conversation_with(EASY), temperature=0.8))["id"] for _ in range(20)]
    moves = {(await policy.play(EASY, temperature=0.8))[0].board() for _ in range(40)}
    assert len(set(ids)) == 20 and len(moves) > 1


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


def test_the_tool_choice_is_respected() -> None:
    tools = [BUY.schema(), {**BUY.schema(), "name": "sell"}, {"type": "web_search"}]
    choices: list[Any] = ["none", "auto", {"type": "function", "name": "sell"}]
    found = [[tool["name"] for tool in callable_tools({"tools": tools, "tool_choice": one})] for one in choices]
    assert found == [[], ["buy", "sell"], ["sell"]]


REQUEST: Json = {"input": PROMPT, "tools": [STEP_TOOL], "temperature": 0}
CHAT: Json = {"messages": PROMPT, "temperature": 0}


@pytest.mark.parametrize(("path", "body"), [("/v1/responses", REQUEST), ("/v1/chat/completions", CHAT)])
async def test_injected_faults_are_openai_errors_a_retry_after_header_or_truncated_json(path: str, body: Json) -> None:
    async def faulty(**faults: float) -> HttpResponse:
        return await ModelServer(faults=faults).post(body, path)

    answer = await faulty(error_rate=1)
    assert answer.status == 500 and json.loads(answer.body)["error"]["type"] == "server_error"
    answer = await faulty(rate_limit_rate=1, retry_after_s=7)
    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
    assert json.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"
    answer = await faulty(garbage_rate=1)
    assert answer.status == 200
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.body)


async def test_latency_and_slow_answers_are_late_but_correct() -> None:
    for settings in ({"faults": {"slow_rate": 1, "slow_s": 0.1}}, {"latency_s": 0.1, "jitter_s": 0.02}):
        started = time.monotonic()
        answer = await ModelServer(**settings).post(REQUEST)
        assert time.monotonic() - started >= 0.1
        assert json.loads(answer.body)["output"][0]["name"] == "step"


async def test_a_hang_exceeds_the_callers_timeout() -> None:
    policy = ModelServer(faults={"hang_rate": 1})
    with pytest.raises(Failure) as caught:
        await policy.post(REQUEST, timeout_s=0.1)
    assert caught.value.kind is FailureKind.TIMEOUT and policy.server.in_flight == 0


async def test_faults_occur_at_their_rates_and_a_repeated_request_may_succeed() -> None:
    policy = ModelServer(faults={"error_rate": 0.2, "rate_limit_rate": 0.3})
    statuses = [(await policy.post({**REQUEST, "seed": 1})).status for _ in range(600)]
    assert 0.14 < statuses.count(500) / 600 < 0.26
    assert 0.23 < statuses.count(429) / 600 < 0.37
    assert statuses.count(200) == 600 - statuses.count(500) - statuses.count(429)


def test_rates_that_add_up_to_more_than_1_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"add up to 1\.2"):
        BuiltinModelSettings.model_validate({"faults": {"error_rate": 0.6, "hang_rate": 0.6}})
