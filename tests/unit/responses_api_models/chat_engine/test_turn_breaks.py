"""Where a prompt cannot go on from the turn before: the break is on record with its reason, and never hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import orjson
import pytest

from rollyard.services.rollout_types import Response
from rollyard.services.types import Json
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
    player: EpisodeClient, change: Callable[[Json], object] = lambda request: None
) -> tuple[Json, Json]:
    """A turn, and the one after an answer to its call, its request changed by whoever stands between."""
    one = await player.ask()
    player.conversation.answer(tool_output(one) if one["type"] == "function_call" else user_message("on"))
    request = orjson.loads(player.conversation.request())
    change(request)
    status, response = await player.send("/v1/responses", request)
    assert status == 200, response
    player.conversation.add(cast(Response, response))
    return one, response["output"][-1]


async def test_messages_that_are_retokenized_leave_a_record_of_the_first_difference() -> None:
    async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN]), token_in="off") as player:
        one, two = await second_turn(player)
    expected, prompt, trace = turn_tokens(one), two["prompt_token_ids"], two["token_trace"]
    at = trace["break"]["position"]
    assert expected[:at] == prompt[:at]
    assert expected[at] != prompt[at]
    assert trace["break"] == {
        "reason": "retokenized",
        "position": at,
        "expected_length": len(expected),
        "prompt_length": len(prompt),
        "expected": expected[at : at + 8],
        "found": prompt[at : at + 8],
    }
    assert (one["token_trace"]["segment"], trace["segment"], trace["way"]) == (0, 1, "chat")


async def test_messages_that_are_tokenized_as_they_were_said_are_no_break() -> None:
    said = [*encode("the box"), END]
    async with open_episode(TokenEngine([said, TEXT_TURN]), token_in="off") as player:
        one, two = await second_turn(player)
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
    "another question": later(lambda items: items[0].update(content="go left")),
    "another call": later(lambda items: items[1].update(arguments='{"actions": ["left"]}')),
    "another tool's call": later(lambda items: items[1].update(name="pull")),
    "words of the model that it never said": later(
        lambda items: items.insert(1, {**TURN, "type": "message"} | WORDS_OF)
    ),
    "a message between": later(lambda items: items.insert(0, user_message("hello"))),
    "a question gone": later(lambda items: items.pop(0)),
    "other tools": lambda request: request["tools"].append({**TOOL, "name": "pull"}),
    "other instructions": lambda request: request.update(instructions="Be brief."),
    "another template's argument": lambda request: request.update(chat_template_kwargs={"enable_thinking": False}),
}
WORDS_OF: Json = {"role": "assistant", "content": "I push."}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("way", ["generate", "completions"])
async def test_an_edited_history_is_noticed_and_goes_as_messages(edit: str, way: str) -> None:
    async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN]), token_in=way) as player:
        _, two = await second_turn(player, EDITS[edit])
    assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", "history_changed")


HARMLESS: dict[str, Callable[[Json], object]] = {
    "space around a question": later(lambda items: items[0].update(content=" go up\n")),
    "reasoning dropped": later(lambda items: items.pop(1)),
    "another id of the call": later(lambda items: [item.update(call_id="mine") for item in items[2:]]),
    "the items' own ids and states dropped": later(lambda items: [items[2].pop(key) for key in ("id", "status")]),
}


@pytest.mark.parametrize("edit", HARMLESS)
async def test_what_clients_change_without_meaning_to_is_no_edit(edit: str) -> None:
    thinking = [*encode("<think>\nhm\n</think>\n\n"), *CALL_TURN]
    async with open_episode(TokenEngine([thinking, TEXT_TURN])) as player:
        one, two = await second_turn(player, HARMLESS[edit])
    assert two["token_trace"]["way"] == "generate"
    assert appended_tokens(two, one)


async def test_after_a_break_a_new_segment_begins_and_the_next_turn_goes_on_from_it() -> None:
    async with open_episode(TokenEngine([CALL_TURN])) as player:
        _, two = await second_turn(player, EDITS["another question"])
        three = await player.ask(tool_output(two))
        assert three["token_trace"]["break"]["reason"] == "history_changed"  # the agent still tells the old one
        four = await player.ask(tool_output(three))
    assert [turn["token_trace"]["segment"] for turn in (two, three, four)] == [1, 2, 2]
    assert appended_tokens(four, three)


def with_image(place: int) -> Callable[[Json], object]:
    text = {"type": "input_text", "text": "look"}
    return later(lambda items: items.insert(place, {"role": "user", "content": [text, IMAGE]}))


async def test_a_new_image_goes_as_messages() -> None:
    async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN])) as player:
        _, two = await second_turn(player, with_image(3))
    assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", "not_text")


async def test_an_image_of_an_earlier_turn_goes_as_messages_because_its_ids_alone_are_no_picture() -> None:
    image = [{"type": "input_text", "text": "look"}, IMAGE]
    async with open_episode(
        TokenEngine([CALL_TURN, TEXT_TURN]), params={"input": [{"role": "user", "content": image}]}
    ) as player:
        _, two = await second_turn(player)
    assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", "not_text")


async def test_text_in_several_parts_is_text() -> None:
    parts = [{"type": "input_text", "text": "go"}, {"type": "input_text", "text": " up"}]
    async with open_episode(
        TokenEngine([CALL_TURN, TEXT_TURN]), params={"input": [{"role": "user", "content": parts}]}
    ) as player:
        one, two = await second_turn(player)
    assert appended_tokens(two, one)


@pytest.mark.parametrize("end", ["", "\n", "\n\n", ".\n", "</", "\n## "], ids=repr)
async def test_a_template_without_a_token_that_ends_turns_goes_as_messages(end: str) -> None:
    """One of ordinary text is none: it stands in calls and thoughts, too, and the cut would be made there."""
    async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN], template=ChatTemplate(end))) as player:
        _, two = await second_turn(player)
    assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", "no_end_of_turn")


async def test_a_request_that_brings_nothing_new_goes_as_messages() -> None:
    async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN])) as player:
        _, two = await second_turn(player, later(lambda items: items.pop()))
    assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", "nothing_new")


UNFIT: list[tuple[Json, Json, str]] = [
    ({"text_tool_parser": None}, {}, "no_text_tool_parser"),
    ({}, {"tool_choice": "required"}, "tool_choice"),
    ({}, {"tool_choice": {"type": "function", "name": "push"}}, "tool_choice"),
]


@pytest.mark.parametrize(("settings", "params", "reason"), UNFIT)
async def test_what_the_completions_endpoint_cannot_do_goes_as_messages(
    settings: Json, params: Json, reason: str
) -> None:
    async with open_episode(
        TokenEngine([CALL_TURN, TEXT_TURN]), token_in="completions", params=params, **settings
    ) as player:
        _, two = await second_turn(player)
    assert (two["token_trace"]["way"], two["token_trace"]["break"]["reason"]) == ("chat", reason)


async def test_without_tools_the_completions_endpoint_needs_no_parser() -> None:
    settings: Json = {"token_in": "completions", "text_tool_parser": None}
    async with open_episode(TokenEngine([TEXT_TURN]), params={"tools": []}, **settings) as player:
        one, two = await second_turn(player)
    assert appended_tokens(two, one)


async def test_an_engine_without_token_in_endpoints_is_given_ids_through_completions() -> None:
    async with open_episode(TokenEngine([CALL_TURN, TEXT_TURN], has_token_endpoints=False)) as player:
        one, two = await second_turn(player)
    assert two["token_trace"]["way"] == "completions"
    assert appended_tokens(two, one)


async def test_token_in_generate_demands_the_endpoints_and_says_how_to_have_them() -> None:
    async with open_episode(TokenEngine([CALL_TURN], has_token_endpoints=False), token_in="generate") as player:
        status, problem = await player.send("/v1/responses", orjson.loads(player.conversation.request()))
    assert (status, problem["type"]) == (400, "urn:rollyard:upstream_refused")
    assert "--enable-scale-out" in problem["detail"]


def traced(**trace: Any) -> Json:
    """A turn that another stack recorded."""
    return {**TURN, "prompt_token_ids": encode("<|im_start|>user\ngo up<|im_end|>\n"), **trace}


@pytest.mark.parametrize("turn", [traced(), traced(token_trace=None)], ids=["no trace", "null"])
async def test_a_turn_with_tokens_of_another_stack_is_gone_on_from(turn: Json) -> None:
    async with open_episode(TokenEngine([TEXT_TURN]), params={"input": [user_message("go up"), turn]}) as player:
        item = await player.ask({"type": "function_call_output", "call_id": "a", "output": "up"})
    assert appended_tokens(item, turn)[0] == END


async def test_tokens_that_are_null_count_as_none() -> None:
    turn = {**TURN, "prompt_token_ids": None, "generation_token_ids": None}
    async with open_episode(TokenEngine([TEXT_TURN]), params={"input": [user_message("go up"), turn]}) as player:
        item = await player.ask({"type": "function_call_output", "call_id": "a", "output": "up"})
    assert item["token_trace"]["segment"] == 0
