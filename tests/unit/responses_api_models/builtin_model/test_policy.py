"""The built-in model as an agent's policy: what it reads and what it answers."""

from __future__ import annotations

import functools
import itertools
import json

import pytest
from openai.types.responses import Response

from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.app import BuiltinModel
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


@pytest.mark.parametrize(
    "output",
    [
        EASY,
        json.dumps(EASY),
        json.dumps({"observation": EASY, "done": False}),
        json.dumps({"state": EASY, "reward": 0.0}),
        f"Here is the room:\n\n{EASY}\n\nYour move.",
        "\n".join(" ".join(row) for row in EASY.split("\n")),
        EASY.replace("\n", "\r\n"),
    ],
    ids=["bare", "json string", "observation", "other key", "in a text", "spaced", "crlf"],
)
async def test_a_board_is_found_in_any_format(output: str) -> None:
    assert arguments(await ModelServer().respond(conversation_with(output), temperature=0)) == {"actions": ["Up"]}


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


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": -1}, "temperature is -1"),
        ({"metadata": {"extra_body": "{"}}, "metadata.extra_body is '{'"),
    ],
)
async def test_an_invalid_parameter_is_refused_by_name(parameter: Json, message: str) -> None:
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
