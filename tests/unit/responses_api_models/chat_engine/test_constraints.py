"""Whatever changes the distribution that a turn is sampled from stands on its record, whichever way it went."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rollyard.services.responses.policy_logprobs import why_not_policy_logprobs
from rollyard.services.types import Json
from tests.support.token_clients import TEXT_TURN, TOOL, open_episode, user_message
from tests.support.token_engine import TokenEngine

WAYS = ["generate", "completions", "off"]
STRICT = {"tools": [{**TOOL, "strict": True}]}
SCHEMA: Json = {"type": "json_schema", "name": "m", "schema": {"type": "object"}}
OTHERS: list[tuple[Json, list[str]]] = [
    ({"allowed_token_ids": [5, 6]}, ["allowed_token_ids"]),
    ({"min_tokens": 3}, ["min_tokens"]),
    ({"logit_bias": {"5": 1.0}}, ["logit_bias"]),
    ({"bad_words": ["wall"]}, ["bad_words"]),
    ({"top_p": 0.9}, ["top_p"]),
    ({"top_k": 20}, ["top_k"]),
    ({"min_p": 0.1}, ["min_p"]),
    ({"repetition_penalty": 1.1}, ["repetition_penalty"]),
    ({"presence_penalty": 0.1, "frequency_penalty": 0.2}, ["presence_penalty", "frequency_penalty"]),
    ({"structured_outputs": {"regex": "a+"}}, ["structured_outputs"]),
    ({"structured_outputs": {"json": {}}}, ["structured_outputs"]),
]
NEUTRAL: Json = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "logit_bias": {}, "bad_words": [], "min_tokens": 0}


async def sampling(way: str, params: Json, **settings: Any) -> Json:
    """The record of a later turn's sampling."""
    async with open_episode(TokenEngine([TEXT_TURN]), token_in=way, params=params, **settings) as player:
        await player.ask()
        item = await player.ask(user_message("on"))
    found: Json = item["token_trace"]["sampling"]
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("params", "names"), OTHERS, ids=lambda value: "-".join(value))
async def test_a_constraint_is_on_record_by_name_and_value(way: str, params: Json, names: list[str]) -> None:
    found = await sampling(way, params)
    assert found["constrained"] == names
    for name, value in params.items():
        assert (found["constraints"][name] if name not in found else found[name]) == value


BY_OTHER_NAMES: list[Json] = [
    *({"guided_json": {}}, {"guided_choice": ["a"]}, {"regex": "a+"}, {"ebnf": "root ::= 'a'"}, {"json_schema": "{}"}),
    *({"grammar": "root ::= 'a'"}, {"typical_p": 0.9}, {"no_repeat_ngram_size": 2}, {"min_new_tokens": 4}),
    *({"repeat_penalty": 1.2}, {"vllm_xargs": {"a": 1}}, {"logits_processors": ["a"]}, {"thinking_token_budget": 9}),
]


@pytest.mark.parametrize("by", ["the request", "metadata", "settings", "overrides"])
@pytest.mark.parametrize("params", BY_OTHER_NAMES, ids=lambda value: next(iter(value)))
async def test_a_constraint_by_another_name_or_from_another_place_is_on_record(params: Json, by: str) -> None:
    asked = {"the request": params, "metadata": {"metadata": {"extra_body": orjson.dumps(params).decode()}}}
    chosen = {"settings": {"extra_body": params}, "overrides": {"sampling_overrides": params}}
    found = await sampling("off", asked.get(by, {}), **chosen.get(by, {}))
    assert found["constrained"] == [*params]
    assert why_not_policy_logprobs({"token_trace": {"sampling": found}})


@pytest.mark.parametrize("way", WAYS)
async def test_values_that_change_nothing_are_no_constraints(way: str) -> None:
    found = await sampling(way, {**NEUTRAL, "text": {"format": {"type": "text"}}, "tools": [{**TOOL, "strict": False}]})
    assert "constrained" not in found and "constraints" not in found and "not_enforced" not in found


FORCED: list[tuple[Json, list[str]]] = [
    (STRICT, ["strict_tools"]),
    ({"tool_choice": "required"}, ["tool_choice"]),
    ({"tool_choice": {"type": "function", "name": "push"}}, ["tool_choice"]),
    ({**STRICT, "tool_choice": "required"}, ["strict_tools", "tool_choice"]),
    ({**STRICT, "tool_choice": "none"}, []),
]


@pytest.mark.parametrize("way", ["generate", "off"])
@pytest.mark.parametrize(("params", "names"), FORCED)
async def test_strict_and_forced_tool_calls_are_on_record(way: str, params: Json, names: list[str]) -> None:
    assert (await sampling(way, params)).get("constrained", []) == names


async def test_strict_tools_that_an_endpoint_does_not_enforce_are_on_record_as_such() -> None:
    found = await sampling("completions", STRICT)
    assert found["not_enforced"] == ["strict_tools"]
    assert "constrained" not in found


async def test_the_setting_that_makes_tools_strict_counts_and_not_the_request() -> None:
    assert "constrained" not in await sampling("generate", STRICT, strict_tools=False)
    assert (await sampling("generate", {}, strict_tools=True))["constrained"] == ["strict_tools"]


async def test_a_schema_of_the_responses_api_is_on_record() -> None:
    assert (await sampling("off", {"text": {"format": SCHEMA}}))["constrained"] == ["response_format"]


async def test_a_long_constraint_stands_on_record_with_its_size_and_hash() -> None:
    found = (await sampling("generate", {"allowed_token_ids": [*range(5000)]}))["constraints"]["allowed_token_ids"]
    assert found["bytes"] > 4000
    assert len(found["sha256"]) == 64


@pytest.mark.parametrize("way", WAYS)
async def test_what_ends_a_turn_is_on_record_and_no_constraint(way: str) -> None:
    ends: Json = {"stop": ["a"], "stop_token_ids": [7], "ignore_eos": True}
    found = await sampling(way, ends)
    assert {key: found[key] for key in ends} == ends
    assert "constrained" not in found


def turn(mode: str, *names: str, temperature: float = 1.0) -> Json:
    held = {"constrained": [*names]} if names else {}
    return {"token_trace": {"sampling": {"temperature": temperature, "logprobs_mode": mode, **held}}}


POLICYS = [turn("raw_logprobs"), turn("processed_logprobs"), turn("raw_logprobs", "top_p", "allowed_token_ids")]
NOT_POLICYS: list[tuple[Json, str]] = [
    (turn("processed_logprobs", "top_p"), "top_p changed"),
    (turn("raw_logprobs", "strict_tools", "top_p"), "strict_tools changed"),
    (turn("raw_logprobs", temperature=0.0), "greedily"),
    (turn("processed_logprobs", temperature=1e-3), "greedily"),
    (turn("raw_logprobs", "ebnf"), "ebnf changed"),
    ({"token_trace": {"sampling": {"logprobs_mode": "raw_logprobs"}}}, "recorded temperature is None"),
    (turn("unknown"), "'unknown'"),
    (turn("raw_logits"), "'raw_logits'"),
    ({}, "no record"),
    ({"token_trace": None}, "no record"),
]


@pytest.mark.parametrize("item", POLICYS)
def test_a_trainer_is_told_nothing_of_log_probabilities_that_are_the_policys(item: Json) -> None:
    assert why_not_policy_logprobs(item) == ""


@pytest.mark.parametrize(("item", "words"), NOT_POLICYS)
def test_a_trainer_is_told_why_log_probabilities_are_not_the_policys(item: Json, words: str) -> None:
    assert words in why_not_policy_logprobs(item)
