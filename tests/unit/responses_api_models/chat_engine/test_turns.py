"""Turns with tokens on record: each prompt begins with exactly the turn before, whatever was said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.responses_api_models.convert.conversion import Dialect, request_to_chat
from rollyard.services.types import TOKEN_FIELDS, Json
from tests.support import toy_tokenizer
from tests.support.token_clients import (
    CALL_TURN,
    TEXT_TURN,
    TOOL,
    EpisodeClient,
    appended_tokens,
    open_episode,
    tool_output,
    tool_turn_tokens,
    user_message,
)
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, ChatTemplate, encode, encode_letters

WAYS = ["generate", "completions"]
_IDS = [*range(10, 10 + len(toy_tokenizer.PIECES)), *encode_letters("xyz .\n√{}\"'<|>")]


@dataclass(frozen=True)
class Exchange:
    """A turn of the model and what comes after it."""

    generated: list[int]
    answer: str
    question: bool
    """The user asks something, whether or not tools were called."""


def exchanges() -> st.SearchStrategy[list[Exchange]]:
    anything = st.lists(st.sampled_from(_IDS), min_size=1, max_size=12)
    called = anything.map(lambda ids: [*ids, *CALL_TURN[:-1]])
    thinking = anything.map(lambda ids: [*encode("<think>\nhm\n</think>\n\n"), *ids])
    said = st.tuples(st.one_of(anything, called, thinking), st.booleans())
    generated = said.map(lambda pair: [*pair[0], END] if pair[1] else pair[0])
    text = st.text("abx<>|{}/ \n√", max_size=12)
    return st.lists(st.builds(Exchange, generated, text, st.booleans()), min_size=2, max_size=5)


async def played(player: EpisodeClient, exchange: Exchange) -> Json:
    """The model's turn after what follows the one before."""
    calls = [item for item in player.responses[-1]["output"] if item["type"] == "function_call"]
    new = [tool_output(call, exchange.answer) for call in calls]
    return await player.ask(*new, *([user_message(exchange.answer)] if exchange.question or not calls else []))


def template_behind_the_turn_before(player: EpisodeClient) -> list[int]:
    """What the template writes behind the model's latest turn, when the whole conversation is rendered anew."""
    request = orjson.loads(player.conversation.request())
    items = request["input"][: -len(player.responses[-1]["output"])]
    chat = request_to_chat({**request, "input": items}, Dialect())
    messages, tools = chat["messages"], chat.get("tools")
    last = max(at for at, message in enumerate(messages) if message["role"] == "assistant")
    turns = ChatTemplate().render(messages[: last + 1], tools, ask=False).count("<|im_end|>")
    return encode(ChatTemplate().render(messages, tools).split("<|im_end|>", turns)[turns])


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=25, deadline=None)
@given(conversation=exchanges())
async def test_each_prompt_begins_with_exactly_the_turn_before_and_goes_on_as_the_template_does(
    way: str, conversation: list[Exchange]
) -> None:
    script = [exchange.generated for exchange in conversation]
    async with open_episode(TokenEngine(script), token_in=way) as player:
        last = await player.ask()
        for number, exchange in enumerate(conversation[:-1]):
            item = await played(player, exchange)
            ended = [] if exchange.generated[-1] == END else [END]
            assert appended_tokens(item, last) == [*ended, *template_behind_the_turn_before(player)]
            assert item["generation_token_ids"] == conversation[number + 1].generated
            assert (item["token_trace"]["way"], item["token_trace"]["segment"]) == (way, 0)
            last = item


async def two_turns(script: list[list[int]], way: str, **settings: Any) -> tuple[Json, Json, TokenEngine]:
    """A turn with a call, its answer, and the next turn."""
    engine = TokenEngine(script)
    async with open_episode(engine, token_in=way, **settings) as player:
        one = await player.ask()
        return one, await player.ask(tool_output(one)), engine


@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_that_was_cut_off_gets_the_templates_end_of_turn(way: str) -> None:
    async with open_episode(TokenEngine([encode("I go"), TEXT_TURN]), token_in=way) as player:
        one = await player.ask()
        two = await player.ask(user_message("on"))
    assert (player.responses[0]["status"], player.responses[1]["status"]) == ("incomplete", "completed")
    assert appended_tokens(two, one) == encode("<|im_end|>\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("way", WAYS)
async def test_reasoning_that_the_template_drops_later_stays_in_the_tokens(way: str) -> None:
    thinking = [*encode("<think>\nwhere is the box?\n</think>\n\ngo"), END]
    async with open_episode(TokenEngine([thinking, TEXT_TURN]), token_in=way) as player:
        one = await player.ask()
        two = await player.ask(user_message("on"))
    assert appended_tokens(two, one) == encode("\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n")
    assert [item["type"] for item in player.responses[0]["output"]] == ["reasoning", "message"]


@pytest.mark.parametrize("way", WAYS)
async def test_answers_to_several_calls_of_a_turn_come_in_the_templates_grouping(way: str) -> None:
    both = [*CALL_TURN[:-1], *encode_letters("\n"), *CALL_TURN]
    async with open_episode(TokenEngine([both, TEXT_TURN]), token_in=way) as player:
        one = await player.ask()
        first, second = player.responses[0]["output"]
        two = await player.ask(tool_output(first, "left"), tool_output(second, "right"))
    grouped = tool_turn_tokens("left\n</tool_response>\n<tool_response>\nright")
    assert appended_tokens(two, one) == grouped


@pytest.mark.parametrize("way", WAYS)
async def test_the_templates_arguments_hold_for_what_is_new(way: str) -> None:
    one, two, _ = await two_turns([CALL_TURN, TEXT_TURN], way, chat_template_kwargs={"enable_thinking": False})
    assert appended_tokens(two, one) == [*tool_turn_tokens("## the wall"), *encode("<think>\n\n</think>\n\n")]


@pytest.mark.parametrize("way", [*WAYS, "off"])
async def test_nothing_of_a_trace_or_of_recorded_tokens_reaches_the_engines_messages(way: str) -> None:
    *_, engine = await two_turns([CALL_TURN, TEXT_TURN], way)
    for _, body in engine.requests:
        told = orjson.dumps([body.get("messages"), body.get("chat_request")])
        assert not [field for field in TOKEN_FIELDS if field.encode() in told]


async def test_an_engine_that_reads_token_ids_on_messages_is_given_those_and_no_trace() -> None:
    one, _, engine = await two_turns([CALL_TURN, TEXT_TURN], "auto", send_token_ids=True)
    path, body = [asked for asked in engine.requests if "messages" in asked[1]][-1]
    (said,) = [message for message in body["messages"] if message["role"] == "assistant"]
    assert path == "/v1/chat/completions"
    assert {key: said.get(key) for key in TOKEN_FIELDS} == {
        **{key: one[key] for key in TOKEN_FIELDS},
        "token_trace": None,
    }


@pytest.mark.parametrize("way", [*WAYS, "off"])
async def test_a_chat_client_gets_the_same_tokens_and_trace_as_a_responses_client(way: str) -> None:
    one, two, _ = await two_turns([CALL_TURN, TEXT_TURN], way)
    async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN]), token_in=way) as player:
        tools = [{"type": "function", "function": {key: value for key, value in TOOL.items() if key != "type"}}]
        request: Json = {"messages": [user_message("go up")], "tools": tools}
        for recorded in (one, two):
            status, answer = await player.send("/v1/chat/completions", request)
            assert status == 200
            message = answer["choices"][0]["message"]
            assert {key: message[key] for key in TOKEN_FIELDS} == {key: recorded[key] for key in TOKEN_FIELDS}
            calls = message.get("tool_calls") or []
            outputs = [{"role": "tool", "tool_call_id": call["id"], "content": "## the wall"} for call in calls]
            request["messages"] += [message, *outputs]


@pytest.mark.parametrize("way", WAYS)
async def test_tokens_of_the_last_turn_are_all_that_is_needed(way: str) -> None:
    async with open_episode(TokenEngine([CALL_TURN, CALL_TURN, TEXT_TURN]), token_in=way) as player:
        one = await player.ask()
        two = await player.ask(tool_output(one))
        sent = orjson.loads(player.conversation.request())["input"]
        assert [("generation_token_ids" in item) for item in sent if item.get("type") == "function_call"] == [
            False,
            True,
        ]
        three = await player.ask(tool_output(two))
    assert appended_tokens(three, two) == tool_turn_tokens("## the wall")


async def test_the_ending_of_a_template_is_asked_once_and_a_later_turn_takes_three_requests() -> None:
    async with open_episode(TokenEngine([CALL_TURN]), logprobs_mode="processed_logprobs") as player:
        item = await player.ask()
        item = await player.ask(tool_output(item))
        before = len(player.engine.requests)
        await player.ask(tool_output(item))
    assert player.engine.paths[before:] == ["render", "generate", "derender"]
