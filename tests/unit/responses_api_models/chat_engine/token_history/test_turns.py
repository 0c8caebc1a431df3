"""With recorded tokens, each prompt starts with exactly the previous turn, whatever the model generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.types import TOKEN_FIELDS, Json
from rollyard.responses_api_models.convert.conversion import Dialect, request_to_chat
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

BACKENDS = ["generate", "completions"]
_IDS = [*range(10, 10 + len(toy_tokenizer.PIECES)), *encode_letters("xyz .\n√{}\"'<|>")]


@dataclass(frozen=True)
class Exchange:
    """A turn of the model and what follows it."""

    generated: list[int]
    answer: str
    user_speaks: bool
    """Whether a user message follows, with or without tool outputs."""


def exchanges() -> st.SearchStrategy[list[Exchange]]:
    anything = st.lists(st.sampled_from(_IDS), min_size=1, max_size=12)
    with_call = anything.map(lambda ids: [*ids, *CALL_TURN[:-1]])
    thinking = anything.map(lambda ids: [*encode("<think>\nhm\n</think>\n\n"), *ids])
    turn = st.tuples(st.one_of(anything, with_call, thinking), st.booleans())
    generated = turn.map(lambda pair: [*pair[0], END] if pair[1] else pair[0])
    text = st.text("abx<>|{}/ \n√", max_size=12)
    return st.lists(st.builds(Exchange, generated, text, st.booleans()), min_size=2, max_size=5)


async def next_turn(client: EpisodeClient, exchange: Exchange) -> Json:
    """Send what follows the previous turn; the model's next turn."""
    calls = [item for item in client.responses[-1]["output"] if item["type"] == "function_call"]
    new = [tool_output(call, exchange.answer) for call in calls]
    return await client.ask(*new, *([user_message(exchange.answer)] if exchange.user_speaks or not calls else []))


def template_after_previous_turn(client: EpisodeClient) -> list[int]:
    """What the template writes after the model's latest turn when the whole conversation is rendered again."""
    request = orjson.loads(client.conversation.request())
    items = request["input"][: -len(client.responses[-1]["output"])]
    chat = request_to_chat({**request, "input": items}, Dialect())
    messages, tools = chat["messages"], chat.get("tools")
    last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
    turns = ChatTemplate().render(messages[: last + 1], tools, ask=False).count("<|im_end|>")
    return encode(ChatTemplate().render(messages, tools).split("<|im_end|>", turns)[turns])


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=25)
@given(conversation=exchanges())
async def test_each_prompt_starts_with_exactly_the_previous_turn_and_continues_as_the_template_does(
    backend: str, conversation: list[Exchange]
) -> None:
    script = [exchange.generated for exchange in conversation]
    async with open_episode(TokenEngine(script), token_in=backend) as client:
        last = await client.ask()
        for number, exchange in enumerate(conversation[:-1]):
            item = await next_turn(client, exchange)
            ended = [] if exchange.generated[-1] == END else [END]
            assert appended_tokens(item, last) == [*ended, *template_after_previous_turn(client)]
            assert item["generation_token_ids"] == conversation[number + 1].generated
            assert (item["token_trace"]["way"], item["token_trace"]["segment"]) == (backend, 0)
            last = item


async def two_turns(script: list[list[int]], backend: str, **settings: Any) -> tuple[Json, Json, TokenEngine]:
    """A turn with a call, and the next turn."""
    engine = TokenEngine(script)
    async with open_episode(engine, token_in=backend, **settings) as client:
        one = await client.ask()
        return one, await client.ask(tool_output(one)), engine


async def test_a_truncated_turn_gets_the_templates_end_of_turn() -> None:
    for backend in BACKENDS:
        async with open_episode(TokenEngine([encode("I go"), TEXT_TURN]), token_in=backend) as client:
            one = await client.ask()
            two = await client.ask(user_message("on"))
        assert (client.responses[0]["status"], client.responses[1]["status"]) == ("incomplete", "completed")
        assert appended_tokens(two, one) == encode(
            "<|im_end|>\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n"
        )


async def test_reasoning_that_the_template_drops_later_stays_in_the_tokens() -> None:
    for backend in BACKENDS:
        thinking = [*encode("<think>\nwhere is the box?\n</think>\n\ngo"), END]
        async with open_episode(TokenEngine([thinking, TEXT_TURN]), token_in=backend) as client:
            one = await client.ask()
            two = await client.ask(user_message("on"))
        assert appended_tokens(two, one) == encode("\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n")
        assert [item["type"] for item in client.responses[0]["output"]] == ["reasoning", "message"]


async def test_outputs_of_several_calls_are_grouped_as_in_the_template() -> None:
    for backend in BACKENDS:
        both = [*CALL_TURN[:-1], *encode_letters("\n"), *CALL_TURN]
        async with open_episode(TokenEngine([both, TEXT_TURN]), token_in=backend) as client:
            one = await client.ask()
            first, second = client.responses[0]["output"]
            two = await client.ask(tool_output(first, "left"), tool_output(second, "right"))
        grouped = tool_turn_tokens("left\n</tool_response>\n<tool_response>\nright")
        assert appended_tokens(two, one) == grouped


async def test_template_arguments_apply_to_new_messages() -> None:
    for backend in BACKENDS:
        one, two, _ = await two_turns([CALL_TURN, TEXT_TURN], backend, chat_template_kwargs={"enable_thinking": False})
        assert appended_tokens(two, one) == [*tool_turn_tokens("## the wall"), *encode("<think>\n\n</think>\n\n")]


async def test_token_records_do_not_reach_the_engines_messages() -> None:
    for backend in [*BACKENDS, "off"]:
        *_, engine = await two_turns([CALL_TURN, TEXT_TURN], backend)
        for _, body in engine.requests:
            sent = orjson.dumps([body.get("messages"), body.get("chat_request")])
            assert not [field for field in TOKEN_FIELDS if field.encode() in sent]


async def test_an_engine_that_reads_token_ids_on_messages_gets_them_without_the_trace() -> None:
    one, _, engine = await two_turns([CALL_TURN, TEXT_TURN], "auto", send_token_ids=True)
    path, body = [request for request in engine.requests if "messages" in request[1]][-1]
    (sent,) = [message for message in body["messages"] if message["role"] == "assistant"]
    assert path == "/v1/chat/completions"
    assert {key: sent.get(key) for key in TOKEN_FIELDS} == {
        **{key: one[key] for key in TOKEN_FIELDS},
        "token_trace": None,
    }


async def test_a_chat_client_gets_the_same_tokens_and_trace_as_a_responses_client() -> None:
    for backend in [*BACKENDS, "off"]:
        one, two, _ = await two_turns([CALL_TURN, TEXT_TURN], backend)
        async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN]), token_in=backend) as client:
            tools = [{"type": "function", "function": {key: value for key, value in TOOL.items() if key != "type"}}]
            request: Json = {"messages": [user_message("go up")], "tools": tools}
            for recorded in (one, two):
                status, answer = await client.send("/v1/chat/completions", request)
                assert status == 200
                message = answer["choices"][0]["message"]
                assert {key: message[key] for key in TOKEN_FIELDS} == {key: recorded[key] for key in TOKEN_FIELDS}
                calls = message.get("tool_calls") or []
                outputs = [{"role": "tool", "tool_call_id": call["id"], "content": "## the wall"} for call in calls]
                request["messages"] += [message, *outputs]


async def test_only_the_last_turns_tokens_are_needed() -> None:
    for backend in BACKENDS:
        async with open_episode(TokenEngine([CALL_TURN, CALL_TURN, TEXT_TURN]), token_in=backend) as client:
            one = await client.ask()
            two = await client.ask(tool_output(one))
            sent = orjson.loads(client.conversation.request())["input"]
            assert [("generation_token_ids" in item) for item in sent if item.get("type") == "function_call"] == [
                False,
                True,
            ]
            three = await client.ask(tool_output(two))
        assert appended_tokens(three, two) == tool_turn_tokens("## the wall")


async def test_the_templates_end_of_turn_is_probed_once_and_a_later_turn_takes_three_requests() -> None:
    async with open_episode(TokenEngine([CALL_TURN]), logprobs_mode="processed_logprobs") as client:
        item = await client.ask()
        item = await client.ask(tool_output(item))
        requests_before = len(client.engine.requests)
        await client.ask(tool_output(item))
    assert client.engine.paths[requests_before:] == ["render", "generate", "derender"]
