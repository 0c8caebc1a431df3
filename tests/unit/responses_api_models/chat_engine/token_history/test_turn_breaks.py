"""When a prompt cannot continue the previous turn, the break is recorded with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import orjson
import pytest

from rollyard.records.rollout_types import Response
from rollyard.records.types import Json
from tests.support.token_clients import (
    CALL_TURN,
    TEXT_TURN,
    TOOL,
    EpisodeClient,
    appended_tokens,
    open_episode,
    tool_output,
    turn_tokens,
    user_message,
)
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, ChatTemplate, encode

IMAGE: Json = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


async def second_turn(
    client: EpisodeClient, change: Callable[[Json], object] = lambda request: None
) -> tuple[Json, Json]:
    """A turn and the next one, whose request `change` may edit in between."""
    one = await client.ask()
    client.conversation.answer(tool_output(one) if one["type"] == "function_call" else user_message("on"))
    request = orjson.loads(client.conversation.request())
    change(request)
    status, response = await client.send("/v1/responses", request)
    assert status == 200, response
    client.conversation.add(cast(Response, response))
    return one, response["output"][-1]


async def test_retokenized_messages_are_recorded_with_the_first_difference() -> None:
    async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN]), token_in="off") as client:
        one, two = await second_turn(client)
    expected, prompt, trace = turn_tokens(one), two["prompt_token_ids"], two["token_trace"]
    position = trace["break"]["position"]
    assert expected[:position] == prompt[:position]
    assert expected[position] != prompt[position]
    assert trace["break"] == {
        "reason": "retokenized",
        "position": position,
        "expected_length": len(expected),
        "prompt_length": len(prompt),
        "expected": expected[position : position + 8],
        "found": prompt[position : position + 8],
    }
    assert (one["token_trace"]["segment"], trace["segment"], trace["way"]) == (0, 1, "chat")


async def test_messages_that_tokenize_as_generated_are_not_a_break() -> None:
    generated = [*encode("the box"), END]
    async with open_episode(TokenEngine([generated, TEXT_TURN]), token_in="off") as client:
        one, two = await second_turn(client)
    assert "break" not in two["token_trace"]
    assert appended_tokens(two, one)


TURN: Json = {
    "type": "function_call",
    "call_id": "a",
    "name": "push",
    "arguments": "{}",
    "generation_token_ids": [7, 8],
}
TURN |= {"prompt_token_ids": [5, 6], "generation_log_probs": [0.0, 0.0]}


def later(change: Callable[[list[Json]], object]) -> Callable[[Json], object]:
    return lambda request: change(request["input"])


EDITS: dict[str, Callable[[Json], object]] = {
    "another user message": later(lambda items: items[0].update(content="go left")),
    "another call": later(lambda items: items[1].update(arguments='{"actions": ["left"]}')),
    "another tool's call": later(lambda items: items[1].update(name="pull")),
    "a message that the model never wrote": later(
        lambda items: items.insert(1, {**TURN, "type": "message"} | ASSISTANT_TEXT)
    ),
    "a message between": later(lambda items: items.insert(0, user_message("hello"))),
    "a user message removed": later(lambda items: items.pop(0)),
    "other tools": lambda request: request["tools"].append({**TOOL, "name": "pull"}),
    "other instructions": lambda request: request.update(instructions="Be brief."),
    "another template argument": lambda request: request.update(chat_template_kwargs={"enable_thinking": False}),
}
ASSISTANT_TEXT: Json = {"role": "assistant", "content": "I push."}


@pytest.mark.parametrize("edit", EDITS)
async def test_an_edited_history_is_detected_and_sent_as_messages(edit: str) -> None:
    for backend in ("generate", "completions"):
        async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN]), token_in=backend) as client:
            _, two = await second_turn(client, EDITS[edit])
        assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", "history_changed")


HARMLESS: dict[str, Callable[[Json], object]] = {
    "whitespace around a user message": later(lambda items: items[0].update(content=" go up\n")),
    "reasoning dropped": later(lambda items: items.pop(1)),
    "another id of the call": later(lambda items: [item.update(call_id="mine") for item in items[2:]]),
    "the items' own ids and states dropped": later(lambda items: [items[2].pop(key) for key in ("id", "status")]),
}


@pytest.mark.parametrize("edit", HARMLESS)
async def test_changes_that_clients_make_unintentionally_are_not_edits(edit: str) -> None:
    thinking = [*encode("<think>\nhm\n</think>\n\n"), *CALL_TURN]
    async with open_episode(TokenEngine([thinking, TEXT_TURN])) as client:
        one, two = await second_turn(client, HARMLESS[edit])
    assert two["token_trace"]["way"] == "generate"
    assert appended_tokens(two, one)


async def test_a_break_starts_a_new_segment_that_the_next_turn_continues() -> None:
    async with open_episode(TokenEngine([CALL_TURN])) as client:
        _, two = await second_turn(client, EDITS["another user message"])
        three = await client.ask(tool_output(two))
        assert three["token_trace"]["break"]["reason"] == "history_changed"  # the agent still sends the old history
        four = await client.ask(tool_output(three))
    assert [turn["token_trace"]["segment"] for turn in (two, three, four)] == [1, 2, 2]
    assert appended_tokens(four, three)


def with_image(place: int) -> Callable[[Json], object]:
    text = {"type": "input_text", "text": "look"}
    return later(lambda items: items.insert(place, {"role": "user", "content": [text, IMAGE]}))


async def test_a_new_image_is_sent_as_messages() -> None:
    async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN])) as client:
        _, two = await second_turn(client, with_image(3))
    assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", "not_text")


async def test_an_image_of_an_earlier_turn_is_sent_as_messages_because_token_ids_do_not_contain_it() -> None:
    image = [{"type": "input_text", "text": "look"}, IMAGE]
    async with open_episode(
        TokenEngine([CALL_TURN, TEXT_TURN]), params={"input": [{"role": "user", "content": image}]}
    ) as client:
        _, two = await second_turn(client)
    assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", "not_text")


async def test_text_in_several_parts_is_text() -> None:
    parts = [{"type": "input_text", "text": "go"}, {"type": "input_text", "text": " up"}]
    async with open_episode(
        TokenEngine([CALL_TURN, TEXT_TURN]), params={"input": [{"role": "user", "content": parts}]}
    ) as client:
        one, two = await second_turn(client)
    assert appended_tokens(two, one)


async def test_a_template_without_an_end_of_turn_token_is_sent_as_messages() -> None:
    """Ordinary text does not qualify: it also occurs in calls and reasoning, where a cut would be wrong."""
    for end in ("", "\n", "\n\n", ".\n", "</", "\n## "):
        async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN], template=ChatTemplate(end))) as client:
            _, two = await second_turn(client)
        assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", "no_end_of_turn"), end


async def test_a_request_without_new_messages_is_sent_as_messages() -> None:
    async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN])) as client:
        _, two = await second_turn(client, later(lambda items: items.pop()))
    assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", "nothing_new")


CHAT_ONLY: list[tuple[Json, Json, str]] = [
    ({"text_tool_parser": None}, {}, "no_text_tool_parser"),
    ({}, {"tool_choice": "required"}, "tool_choice"),
    ({}, {"tool_choice": {"type": "function", "name": "push"}}, "tool_choice"),
]


async def test_requests_that_the_completions_endpoint_does_not_support_are_sent_as_messages() -> None:
    for settings, params, reason in CHAT_ONLY:
        async with open_episode(
            TokenEngine([CALL_TURN, TEXT_TURN]), token_in="completions", params=params, **settings
        ) as client:
            _, two = await second_turn(client)
        assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", reason)


async def test_without_tools_the_completions_endpoint_needs_no_parser() -> None:
    settings: Json = {"token_in": "completions", "text_tool_parser": None}
    async with open_episode(TokenEngine([TEXT_TURN]), params={"tools": []}, **settings) as client:
        one, two = await second_turn(client)
    assert appended_tokens(two, one)


async def test_an_engine_without_token_in_endpoints_gets_ids_through_completions() -> None:
    async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN], has_token_endpoints=False)) as client:
        one, two = await second_turn(client)
    assert two["token_trace"]["way"] == "completions"
    assert appended_tokens(two, one)


async def test_token_in_generate_requires_the_endpoints_and_says_how_to_enable_them() -> None:
    async with open_episode(TokenEngine([CALL_TURN], has_token_endpoints=False), token_in="generate") as client:
        status, problem = await client.send("/v1/responses", orjson.loads(client.conversation.request()))
    assert (status, problem["type"]) == (400, "urn:rollyard:upstream_refused")
    assert "--enable-scale-out" in problem["detail"]


def recorded_turn(**trace: Any) -> Json:
    """A turn recorded by another stack."""
    return {**TURN, "prompt_token_ids": encode("<|im_start|>user\ngo up<|im_end|>\n"), **trace}


async def test_a_recorded_turn_of_another_stack_is_continued() -> None:
    for turn in [recorded_turn(), recorded_turn(token_trace=None)]:
        async with open_episode(TokenEngine([TEXT_TURN]), params={"input": [user_message("go up"), turn]}) as client:
            item = await client.ask({"type": "function_call_output", "call_id": "a", "output": "up"})
        assert appended_tokens(item, turn)[0] == END


async def test_tokens_that_are_null_count_as_missing() -> None:
    turn = {**TURN, "prompt_token_ids": None, "generation_token_ids": None}
    async with open_episode(TokenEngine([TEXT_TURN]), params={"input": [user_message("go up"), turn]}) as client:
        item = await client.ask({"type": "function_call_output", "call_id": "a", "output": "up"})
    assert item["token_trace"]["segment"] == 0
