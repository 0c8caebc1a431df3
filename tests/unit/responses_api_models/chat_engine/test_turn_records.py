"""What a turn with tokens says of itself: the same whichever way it went, true, or a failure."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rollyard.responses_api_models.chat_engine.sampling import NUMBERS as SAMPLING
from rollyard.services.types import Json
from tests.support.token_clients import CALL_TURN, TEXT_TURN, EpisodeClient, open_episode, tool_output, user_message
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, encode, encode_letters

WAYS = ["off", "generate", "completions"]
BOTH = [*CALL_TURN[:-1], *encode_letters("\n"), *CALL_TURN]


async def later_turn(script: list[list[int]], way: str, params: Json | None = None, **settings: Any) -> Json:
    """The Response of a second turn that went that way."""
    async with open_episode(TokenEngine(script), token_in=way, params=params, **settings) as player:
        one = await player.ask()
        two = await player.ask(tool_output(one) if one["type"] == "function_call" else user_message("on"))
        assert two["token_trace"]["way"] == ("chat" if way == "off" else way)
        return player.responses[1]


async def later_completion(script: list[list[int]], way: str, **more: Any) -> Json:
    """The chat completion of a second turn that went that way."""
    async with open_episode(TokenEngine(script), token_in=way) as player:
        request: Json = {"messages": [user_message("go up")], **more}
        status, answer = await player.send("/v1/chat/completions", request)
        request["messages"] += [answer["choices"][0]["message"], user_message("on")]
        status, answer = await player.send("/v1/chat/completions", request)
        assert status == 200, answer
        assert answer["choices"][0]["message"]["token_trace"]["way"] == ("chat" if way == "off" else way)
        return answer


def as_the_caller_sees_it(response: Json) -> Json:
    """Without what differs between any two calls."""
    output = [
        {key: value for key, value in item.items() if key not in ("id", "call_id", "prompt_token_ids", "token_trace")}
        for item in response["output"]
    ]
    usage = {key: value for key, value in response["usage"].items() if key not in ("input_tokens", "total_tokens")}
    kept = ("object", "status", "incomplete_details", "error", "model", "tools", "tool_choice", "parallel_tool_calls")
    return {**{key: response[key] for key in kept}, "output": output, "usage": usage, "keys": sorted(response)}


SCRIPTS = {
    "a call": [CALL_TURN, CALL_TURN],
    "two calls": [CALL_TURN, BOTH],
    "words": [CALL_TURN, TEXT_TURN],
    "words before a call": [CALL_TURN, [*encode_letters("I go. "), *CALL_TURN]],
    "a thought before words": [CALL_TURN, [*encode("<think>\nhm\n</think>\n\n"), *TEXT_TURN]],
    "a thought before a call": [CALL_TURN, [*encode("hm</think>\n"), *CALL_TURN]],
    "cut off": [CALL_TURN, TEXT_TURN[:-1]],
    "a call that cannot be read": [CALL_TURN, [*encode('<tool_call>{"name": </tool_call>'), END]],
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("way", WAYS[1:])
async def test_the_response_is_the_same_whichever_way_the_turn_went(script: str, way: str) -> None:
    by_chat = as_the_caller_sees_it(await later_turn(SCRIPTS[script], "off"))
    assert as_the_caller_sees_it(await later_turn(SCRIPTS[script], way)) == by_chat


STOPS: dict[str, tuple[list[int], Json, str | int]] = {
    "a stop string": (encode_letters("the box is"), {"stop": ["box", "wall"]}, "box"),
    "a stop string in a thought": (encode("<think>the box"), {"stop": ["box"]}, "box"),
    "a stop token": (encode("the box"), {"stop_token_ids": encode("box")}, encode("box")[0]),
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("way", WAYS[1:])
async def test_what_ended_a_turn_is_no_part_of_its_text_whichever_way_it_went(way: str, stop: str) -> None:
    ids, params, reason = STOPS[stop]
    seen: list[Json] = []
    for token_in in ("off", way):
        async with open_episode(TokenEngine([TEXT_TURN, ids]), token_in=token_in, params=params) as player:
            await player.ask()
            player.engine.stop_reason = reason
            item = await player.ask(user_message("on"))
        assert item["generation_token_ids"] == ids
        seen.append(as_the_caller_sees_it(player.responses[1]))
    assert seen[0] == seen[1]
    assert "box" not in orjson.dumps(seen[1]["output"]).decode()


@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_that_only_ended_is_an_empty_answer(way: str) -> None:
    response = await later_turn([CALL_TURN, [END]], way)
    (item,) = response["output"]
    assert (item["content"][0]["text"], item["generation_token_ids"]) == ("", [END])
    assert response["status"] == "completed"


@pytest.mark.parametrize("way", WAYS)
async def test_usage_counts_the_whole_prompt_and_adds_up(way: str) -> None:
    response = await later_turn([CALL_TURN, TEXT_TURN], way)
    usage, last = response["usage"], response["output"][-1]
    assert (usage["input_tokens"], usage["output_tokens"]) == (len(last["prompt_token_ids"]), len(TEXT_TURN))
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.parametrize("way", WAYS)
async def test_ids_are_new_each_turn_and_look_like_those_of_the_chat_endpoint(way: str) -> None:
    async with open_episode(TokenEngine([CALL_TURN]), token_in=way) as player:
        item = await player.ask()
        for _ in range(2):
            item = await player.ask(tool_output(item))
    ids = [response["id"] for response in player.responses]
    assert len(set(ids)) == 3
    assert all(found.startswith("resp_") and "cmpl" not in found and "generate" not in found for found in ids)
    assert len({response["output"][-1]["call_id"] for response in player.responses}) == 3


@pytest.mark.parametrize("way", WAYS[1:])
async def test_of_several_calls_where_one_may_be_the_first_counts(way: str) -> None:
    response = await later_turn([CALL_TURN, BOTH], way, {"parallel_tool_calls": False})
    assert len(response["output"]) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_chat_client_reads_tool_calls_as_the_reason_of_the_end(way: str) -> None:
    parameters = {"type": "object", "properties": {}}
    tools = [{"type": "function", "function": {"name": "push", "parameters": parameters}}]
    answer = await later_completion([TEXT_TURN, CALL_TURN], way, tools=tools)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")


@pytest.mark.parametrize("way", WAYS)
async def test_ids_stand_where_an_engine_puts_them_only_for_clients_that_asked_for_it(way: str) -> None:
    plain, asked = [await later_completion([TEXT_TURN], way, **more) for more in ({}, {"return_token_ids": True})]
    assert (plain["prompt_token_ids"], plain["choices"][0]["token_ids"]) == (None, None)
    message = asked["choices"][0]["message"]
    assert asked["prompt_token_ids"] == message["prompt_token_ids"]
    assert asked["choices"][0]["token_ids"] == message["generation_token_ids"] == TEXT_TURN


@pytest.mark.parametrize("way", WAYS)
async def test_logprobs_in_words_are_there_only_for_callers_who_asked(way: str) -> None:
    include = {"include": ["message.output_text.logprobs"]}
    wordy, plain = [await later_turn([TEXT_TURN], way, params) for params in (include, {})]
    (entries,) = [part["logprobs"] for part in wordy["output"][-1]["content"]]
    assert "".join(entry["token"] for entry in entries) == "the box<|im_end|>"
    assert [entry["logprob"] for entry in entries] == wordy["output"][-1]["generation_log_probs"]
    assert plain["output"][-1]["content"][0]["logprobs"] == []
    assert (await later_completion([TEXT_TURN], way))["choices"][0]["logprobs"] is None


ASKED: Json = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "presence_penalty": 0.2, "seed": 7}


@pytest.mark.parametrize("way", ["completions", "off"])
@pytest.mark.parametrize("params", [{}, ASKED], ids=["nothing asked", "asked"])
async def test_the_sampling_on_record_is_what_the_engine_was_told(way: str, params: Json) -> None:
    async with open_episode(
        TokenEngine([TEXT_TURN]), token_in=way, params=params, logprobs_mode="processed_logprobs"
    ) as player:
        await player.ask()
        item = await player.ask(user_message("on"))
        told = player.engine.requests[-1][1]
    sampling = item["token_trace"]["sampling"]
    assert {key: value for key, value in sampling.items() if key in (*SAMPLING, "seed")} == {
        key: told[key] for key in (*SAMPLING, "seed") if key in told
    }
    assert sampling["temperature"] == params.get("temperature", 1.0)
    assert (sampling["logprobs_mode"], sampling["policy_version"]) == ("processed_logprobs", "0")


async def test_the_settings_overrides_stand_on_record_and_not_what_they_overrode() -> None:
    settings: Json = {"sampling_overrides": {"temperature": 1.0}, "extra_body": {"top_k": 5}}
    async with open_episode(TokenEngine([TEXT_TURN]), params={"temperature": 0.3}, **settings) as player:
        sampling = (await player.ask())["token_trace"]["sampling"]
    assert (sampling["temperature"], sampling["top_k"]) == (1.0, 5)


async def test_a_constraint_stands_on_record_by_name() -> None:
    async with open_episode(TokenEngine([TEXT_TURN]), params={"structured_outputs": {"regex": "a+"}}) as player:
        assert (await player.ask())["token_trace"]["sampling"]["constrained"] == ["structured_outputs"]


async def failed(player: EpisodeClient) -> Json:
    """The problem of a later turn."""
    player.conversation.answer(user_message("on"))
    status, problem = await player.send("/v1/responses", orjson.loads(player.conversation.request()))
    assert status >= 400
    return problem


@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_without_token_ids_is_a_failure_and_never_a_turn(way: str) -> None:
    async with open_episode(TokenEngine([TEXT_TURN]), token_in=way, max_attempts=1) as player:
        await player.ask()
        player.engine.returns_token_ids = False
        problem = await failed(player)
    assert (problem["type"], problem["status"]) == ("urn:rollyard:malformed_answer", 502)


class Forgetful(TokenEngine):
    """Leaves out the last token's logprob."""

    def _generate(self, body: Json) -> Json:
        return _shortened(super()._generate(body), "content")

    def _complete(self, body: Json) -> Json:
        return _shortened(super()._complete(body), "token_logprobs")

    def _chat(self, body: Json) -> Json:
        return _shortened(super()._chat(body), "content")


def _shortened(answer: Json, key: str) -> Json:
    answer["choices"][0]["logprobs"][key].pop()
    return answer


@pytest.mark.parametrize("way", WAYS)
async def test_logprobs_that_do_not_match_the_ids_are_a_failure(way: str) -> None:
    settings: Json = {"token_in": way, "max_attempts": 1, "logprobs_mode": "processed_logprobs"}
    async with open_episode(Forgetful([TEXT_TURN]), **settings) as player:
        assert (await failed(player))["type"] == "urn:rollyard:malformed_answer"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("left", [TEXT_TURN, []], ids=["some tokens", "none"])
async def test_a_generation_that_the_engine_gave_up_is_no_turn_of_the_model(way: str, left: list[int]) -> None:
    async with open_episode(TokenEngine([TEXT_TURN, left]), token_in=way) as player:
        await player.ask()
        player.engine.finish_reason = "abort"
        assert (await failed(player))["type"] == "urn:rollyard:upstream_error"


@pytest.mark.parametrize("way", WAYS)
async def test_a_conversation_that_no_longer_fits_is_named_so(way: str) -> None:
    async with open_episode(TokenEngine([TEXT_TURN]), token_in=way) as player:
        item = await player.ask()
        player.engine.max_model_len = len(item["prompt_token_ids"]) + 5
        problem = await failed(player)
    assert (problem["type"], problem["code"]) == ("urn:rollyard:context_overflow", "context_length_exceeded")


@pytest.mark.parametrize(
    "body", [{}, {"messages": "hi"}, {"messages": ["hi"]}, {"messages": [user_message("hi")], "n": 2}]
)
async def test_a_chat_request_that_is_no_turn_is_refused(body: Json) -> None:
    async with open_episode(TokenEngine([TEXT_TURN])) as player:
        status, problem = await player.send("/v1/chat/completions", body)
    assert (status, problem["type"]) == (400, "urn:rollyard:bad_request")
    assert not player.engine.requests


async def limits_told(way: str, params: Json) -> list[Any]:
    """What the engine was told of a later turn's length, and how much room there was."""
    async with open_episode(TokenEngine([TEXT_TURN], max_model_len=500), token_in=way, params=params) as player:
        await player.ask()
        item = await player.ask(user_message("on"))
        told = [
            body.get("sampling_params") or body for path, body in player.engine.requests if path.endswith(WHERE[way])
        ]
    return [told[-1].get("max_tokens"), 500 - len(item["prompt_token_ids"])]


WHERE = {"generate": "/inference/v1/generate", "completions": "/v1/completions"}


async def test_without_a_limit_the_whole_context_is_left_and_not_what_the_few_new_messages_leave() -> None:
    told, _ = await limits_told("generate", {})
    assert told is None  # then the engine counts, from the ids
    told, room = await limits_told("completions", {})
    assert told == room


@pytest.mark.parametrize("way", WHERE)
@pytest.mark.parametrize("limit", [7, 16])
async def test_a_limit_reaches_the_engine(way: str, limit: int) -> None:
    """16 is vLLM's own default, which its rendering leaves out."""
    told, _ = await limits_told(way, {"max_output_tokens": limit})
    assert told == limit
