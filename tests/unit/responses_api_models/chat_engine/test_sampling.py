"""Whatever changes the distribution that a turn is sampled from is recorded, with every token backend."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rollyard.records.types import Json
from rollyard.services.responses.policy_logprobs import invalid_numbers, why_not_policy_logprobs
from tests.support.token_clients import TEXT_TURN, TOOL, open_episode, user_message
from tests.support.token_engine import TokenEngine

BACKENDS = ["generate", "completions", "off"]
STRICT = {"tools": [{**TOOL, "strict": True}]}
CONSTRAINTS: Json = {
    "structured_outputs": {"regex": "a+"},
    "allowed_token_ids": [5, 6],
    "logit_bias": {"5": 1.0},
    "bad_words": ["wall"],
    "min_tokens": 3,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
}
NEUTRAL: Json = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "logit_bias": {}, "bad_words": [], "min_tokens": 0}


async def sampling(backend: str, params: Json, **settings: Any) -> Json:
    async with open_episode(TokenEngine([TEXT_TURN]), token_in=backend, params=params, **settings) as client:
        await client.ask()
        item = await client.ask(user_message("on"))
    found: Json = item["token_trace"]["sampling"]
    return found


@pytest.mark.parametrize("backend", BACKENDS)
async def test_every_constraint_is_recorded_with_its_name_and_value(backend: str) -> None:
    found = await sampling(backend, CONSTRAINTS)
    assert sorted(found["constrained"]) == sorted(CONSTRAINTS)
    for name, value in CONSTRAINTS.items():
        assert (found["constraints"][name] if name not in found else found[name]) == value


OTHER_CONSTRAINTS: Json = {
    "guided_json": {},
    "guided_choice": ["a"],
    "regex": "a+",
    "ebnf": "root ::= 'a'",
    "json_schema": "{}",
    "grammar": "root ::= 'a'",
    "typical_p": 0.9,
    "no_repeat_ngram_size": 2,
    "min_new_tokens": 4,
    "repeat_penalty": 1.2,
    "vllm_xargs": {"a": 1},
    "logits_processors": ["a"],
    "thinking_token_budget": 9,
}


@pytest.mark.parametrize("source", ["the request", "metadata", "settings", "overrides"])
async def test_constraints_under_other_names_or_from_other_sources_are_recorded(source: str) -> None:
    params = OTHER_CONSTRAINTS
    in_request = {"the request": params, "metadata": {"metadata": {"extra_body": orjson.dumps(params).decode()}}}
    in_settings = {"settings": {"extra_body": params}, "overrides": {"sampling_overrides": params}}
    found = await sampling("off", in_request.get(source, {}), **in_settings.get(source, {}))
    assert sorted(found["constrained"]) == sorted(params)
    reason = why_not_policy_logprobs({"token_trace": {"sampling": found}})
    assert [name for name in params if name not in reason] == []


async def test_values_that_change_nothing_are_not_constraints() -> None:
    for backend in ["generate", "off"]:
        found = await sampling(
            backend, {**NEUTRAL, "text": {"format": {"type": "text"}}, "tools": [{**TOOL, "strict": False}]}
        )
        assert "constrained" not in found and "constraints" not in found and "not_enforced" not in found


SCHEMA: Json = {"text": {"format": {"type": "json_schema", "name": "m", "schema": {"type": "object"}}}}
FORCED: list[tuple[str, Json, Json, list[str]]] = [
    ("generate", STRICT, {}, ["strict_tools"]),
    ("off", {"tool_choice": "required"}, {}, ["tool_choice"]),
    ("generate", {"tool_choice": {"type": "function", "name": "push"}}, {}, ["tool_choice"]),
    ("off", {**STRICT, "tool_choice": "required"}, {}, ["strict_tools", "tool_choice"]),
    ("generate", {**STRICT, "tool_choice": "required"}, {}, ["strict_tools", "tool_choice"]),
    ("off", {**STRICT, "tool_choice": "none"}, {}, []),
    ("generate", {**STRICT, "tool_choice": "none"}, {}, []),
    ("generate", STRICT, {"strict_tools": False}, []),
    ("generate", {}, {"strict_tools": True}, ["strict_tools"]),
    ("generate", {"structured_outputs": {"json": {}}}, {}, ["structured_outputs"]),
    ("off", SCHEMA, {}, ["response_format"]),
]


@pytest.mark.parametrize(("backend", "params", "settings", "names"), FORCED)
async def test_grammars_and_strict_and_forced_tool_calls_are_recorded(
    backend: str, params: Json, settings: Json, names: list[str]
) -> None:
    assert (await sampling(backend, params, **settings)).get("constrained", []) == names


async def test_strict_tools_that_an_endpoint_does_not_enforce_are_recorded_as_not_enforced() -> None:
    found = await sampling("completions", STRICT)
    assert found["not_enforced"] == ["strict_tools"]
    assert "constrained" not in found


async def test_a_long_constraint_is_recorded_with_its_size_and_hash() -> None:
    found = (await sampling("generate", {"allowed_token_ids": [*range(5000)]}))["constraints"]["allowed_token_ids"]
    assert found["bytes"] > 4000
    assert len(found["sha256"]) == 64


async def test_stop_conditions_are_recorded_but_are_not_constraints() -> None:
    for backend in BACKENDS:
        ends: Json = {"stop": ["a"], "stop_token_ids": [7], "ignore_eos": True}
        found = await sampling(backend, ends)
        assert {key: found[key] for key in ends} == ends
        assert "constrained" not in found


def turn(mode: str, *names: str, temperature: float = 1.0) -> Json:
    constraints = {"constrained": [*names]} if names else {}
    return {"token_trace": {"sampling": {"temperature": temperature, "logprobs_mode": mode, **constraints}}}


POLICY_TURNS = [turn("raw_logprobs"), turn("processed_logprobs"), turn("raw_logprobs", "top_p", "allowed_token_ids")]
OTHER_TURNS: list[tuple[Json, str]] = [
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


def test_the_reason_is_given_if_log_probabilities_are_not_the_policys() -> None:
    assert [why_not_policy_logprobs(item) for item in POLICY_TURNS] == [""] * len(POLICY_TURNS)
    for item, reason in OTHER_TURNS:
        assert reason in why_not_policy_logprobs(item), item


INVALID_VALUES: list[Any] = [-9999.0, -9999, None, "-1.0", True, 0.5, -1e309, float("nan")]


def test_invalid_log_probabilities_and_token_ids_are_detected() -> None:
    for value in INVALID_VALUES:
        assert repr(value) in invalid_numbers([1, 2, 3], [-0.5, value, -0.5])
    for ids in ([1, -1, 2], [1, 2.0, 3], [1, True, 3], [1, None, 3], "abc", None):
        assert "token ids" in invalid_numbers(ids, [-0.5] * 3), ids
