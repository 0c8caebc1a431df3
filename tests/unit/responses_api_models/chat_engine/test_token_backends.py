"""A turn's token record is the same with every backend and correct; otherwise the turn is a failure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.token_backends import read_hermes, read_plain
from rollyard.services.responses.policy_logprobs import invalid_numbers, why_not_policy_logprobs
from tests.support.token_clients import CALL_TURN, TEXT_TURN, TOOL, open_episode, tool_output, user_message
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, encode, encode_letters
from tests.unit.responses_api_models.chat_engine.changed_engine import Changed, choice, logprobs, refuse

BACKENDS = ["off", "generate", "completions"]
BOTH = [*CALL_TURN[:-1], *encode_letters("\n"), *CALL_TURN]


async def later_turn(script: list[list[int]], backend: str, params: Json | None = None, **settings: Any) -> Json:
    async with open_episode(TokenEngine(script), token_in=backend, params=params, **settings) as client:
        one = await client.ask()
        two = await client.ask(tool_output(one) if one["type"] == "function_call" else user_message("on"))
        assert two["token_trace"]["way"] == ("chat" if backend == "off" else backend)
        return client.responses[1]


async def later_completion(script: list[list[int]], backend: str, **more: Any) -> Json:
    async with open_episode(TokenEngine(script), token_in=backend) as client:
        request: Json = {"messages": [user_message("go up")], **more}
        status, answer = await client.send("/v1/chat/completions", request)
        request["messages"] += [answer["choices"][0]["message"], user_message("on")]
        status, answer = await client.send("/v1/chat/completions", request)
        assert status == 200, answer
        assert answer["choices"][0]["message"]["token_trace"]["way"] == ("chat" if backend == "off" else backend)
        return answer


def comparable(response: Json) -> Json:
    output = [
        {key: value for key, value in item.items() if key not in ("id", "call_id", "prompt_token_ids", "token_trace")}
        for item in response["output"]
    ]
    usage = {key: value for key, value in response["usage"].items() if key not in ("input_tokens", "total_tokens")}
    fields = ("object", "status", "incomplete_details", "error", "model", "tools", "tool_choice", "parallel_tool_calls")
    return {**{key: response[key] for key in fields}, "output": output, "usage": usage, "keys": sorted(response)}


SCRIPTS = {
    "a call": [CALL_TURN, CALL_TURN],
    "two calls": [CALL_TURN, BOTH],
    "text": [CALL_TURN, TEXT_TURN],
    "text before a call": [CALL_TURN, [*encode_letters("I go. "), *CALL_TURN]],
    "reasoning before text": [CALL_TURN, [*encode("<think>\nhm\n</think>\n\n"), *TEXT_TURN]],
    "reasoning before a call": [CALL_TURN, [*encode("hm</think>\n"), *CALL_TURN]],
    "cut off": [CALL_TURN, TEXT_TURN[:-1]],
    "only the end token": [CALL_TURN, [END]],
    "a call that cannot be read": [CALL_TURN, [*encode('<tool_call>{"name": </tool_call>'), END]],
}


@pytest.mark.parametrize("script", SCRIPTS)
async def test_the_response_is_the_same_with_every_backend(script: str) -> None:
    off, generate, completions = [comparable(await later_turn(SCRIPTS[script], backend)) for backend in BACKENDS]
    assert generate == off
    assert completions == off


STOPS: dict[str, tuple[list[int], Json, str | int]] = {
    "a stop string": (encode_letters("the box is"), {"stop": ["box", "wall"]}, "box"),
    "a stop string in reasoning": (encode("<think>the box"), {"stop": ["box"]}, "box"),
    "a stop token": (encode("the box"), {"stop_token_ids": encode("box")}, encode("box")[0]),
}


@pytest.mark.parametrize("stop", STOPS)
async def test_a_stop_string_or_token_is_not_in_the_text_with_any_backend(stop: str) -> None:
    ids, params, reason = STOPS[stop]
    responses: list[Json] = []
    for token_in in BACKENDS:
        async with open_episode(TokenEngine([TEXT_TURN, ids]), token_in=token_in, params=params) as client:
            await client.ask()
            client.engine.stop_reason = reason
            item = await client.ask(user_message("on"))
        assert item["generation_token_ids"] == ids
        responses.append(comparable(client.responses[1]))
    assert responses == [responses[0]] * 3
    assert "box" not in orjson.dumps(responses[0]["output"]).decode()


async def test_only_the_first_of_several_calls_counts_without_parallel_tool_calls() -> None:
    for backend in BACKENDS[1:]:
        response = await later_turn([CALL_TURN, BOTH], backend, {"parallel_tool_calls": False})
        assert len(response["output"]) == 1


async def test_a_chat_client_gets_tool_calls_as_the_finish_reason() -> None:
    parameters = {"type": "object", "properties": {}}
    tools = [{"type": "function", "function": {"name": "push", "parameters": parameters}}]
    for backend in BACKENDS:
        answer = await later_completion([TEXT_TURN, CALL_TURN], backend, tools=tools)
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        assert answer["object"] == "chat.completion"
        assert answer["id"].startswith("chatcmpl-")


async def test_token_ids_are_in_vllms_fields_only_on_request() -> None:
    for backend in BACKENDS:
        plain, requested = [
            await later_completion([TEXT_TURN], backend, **more) for more in ({}, {"return_token_ids": True})
        ]
        assert (plain["prompt_token_ids"], plain["choices"][0]["token_ids"]) == (None, None)
        message = requested["choices"][0]["message"]
        assert requested["prompt_token_ids"] == message["prompt_token_ids"]
        assert requested["choices"][0]["token_ids"] == message["generation_token_ids"] == TEXT_TURN


async def test_logprobs_with_token_texts_are_returned_only_on_request() -> None:
    for backend in BACKENDS:
        include = {"include": ["message.output_text.logprobs"]}
        detailed, plain = [await later_turn([TEXT_TURN], backend, params) for params in (include, {})]
        (entries,) = [part["logprobs"] for part in detailed["output"][-1]["content"]]
        assert "".join(entry["token"] for entry in entries) == "the box<|im_end|>"
        assert [entry["logprob"] for entry in entries] == detailed["output"][-1]["generation_log_probs"]
        assert plain["output"][-1]["content"][0]["logprobs"] == []
        assert (await later_completion([TEXT_TURN], backend))["choices"][0]["logprobs"] is None


def with_value(value: Any) -> Callable[[Json], Json]:

    def edit(entries: list[Any]) -> None:
        if isinstance(entries[1], dict):
            entries[1]["logprob"] = value
        else:
            entries[1] = value

    return logprobs(edit)


GENERATED = ("/v1/chat/completions", "/inference/v1/generate", "/v1/completions")
FAULTS: dict[str, tuple[Callable[[Json], Json], str]] = {
    "no ids": (choice(token_ids=None), "malformed_answer"),
    "too few log-probabilities": (logprobs(list.pop), "malformed_answer"),
    "aborted": (choice(finish_reason="abort"), "upstream_error"),
    "aborted without tokens": (choice(finish_reason="abort", token_ids=[]), "upstream_error"),
    **{f"the value {value!r}": (with_value(value), "malformed_answer") for value in (-9999, None, "-1.0", True, 0.5)},
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_turn_without_a_correct_record_is_a_failure(backend: str, fault: str) -> None:
    change, kind = FAULTS[fault]
    engine = Changed([TEXT_TURN], GENERATED, lambda answer: answer)
    async with open_episode(engine, token_in=backend, max_attempts=1, logprobs_mode="processed_logprobs") as client:
        await client.ask()
        engine.change = change
        client.conversation.answer(user_message("on"))
        _, problem = await client.send("/v1/responses", orjson.loads(client.conversation.request()))
    assert problem["type"] == f"urn:rollyard:{kind}"
    if fault.startswith("the value"):
        for named in (fault.removeprefix("the value "), f"token {TEXT_TURN[1]}", f"2 of {len(TEXT_TURN)}"):
            assert named in problem["detail"]


@pytest.mark.parametrize("ids", [[1, None], [True], "abc"])
async def test_a_prompt_without_valid_token_ids_is_a_failure(ids: Any) -> None:
    engine = Changed([TEXT_TURN], "/chat/completions", lambda answer: {**answer, "prompt_token_ids": ids})
    async with open_episode(engine, token_in="off", max_attempts=1) as client:
        _, problem = await client.send("/v1/responses", {"input": "go"})
    assert problem["type"] == "urn:rollyard:malformed_answer"


@pytest.mark.parametrize("spans", [["0"], [None], [["0", 0, 1]]])
async def test_malformed_weight_versions_are_a_failure(spans: Any) -> None:
    async with open_episode(Changed([TEXT_TURN], "/generate", choice(weight_versions=spans)), max_attempts=1) as client:
        _, problem = await client.send("/v1/responses", {"input": "go"})
    assert problem["type"] == "urn:rollyard:malformed_answer"


async def test_a_conversation_that_no_longer_fits_is_a_context_overflow() -> None:
    for backend in BACKENDS:
        async with open_episode(TokenEngine([TEXT_TURN]), token_in=backend) as client:
            item = await client.ask()
            client.engine.max_model_len = len(item["prompt_token_ids"]) + 5
            client.conversation.answer(user_message("on"))
            _, problem = await client.send("/v1/responses", orjson.loads(client.conversation.request()))
        assert (problem["type"], problem["code"]) == ("urn:rollyard:context_overflow", "context_length_exceeded")


async def test_a_limit_reaches_the_engine() -> None:
    """16 is vLLM's own default, which its render endpoint omits; /generate computes one that is missing."""
    paths = {"generate": "/inference/v1/generate", "completions": "/v1/completions"}
    for (backend, sent_to), limit in itertools.product(paths.items(), (7, 16, None)):
        params = {"max_output_tokens": limit} if limit else {}
        async with open_episode(TokenEngine([TEXT_TURN], max_model_len=500), token_in=backend, params=params) as client:
            await client.ask()
            item = await client.ask(user_message("on"))
        *_, sent = [body for path, body in client.engine.requests if path.endswith(sent_to)]
        room = None if backend == "generate" else 500 - len(item["prompt_token_ids"])
        assert (sent.get("sampling_params") or sent).get("max_tokens") == (limit or room)


def mode(item: Json) -> str:
    found: str = item["token_trace"]["sampling"]["logprobs_mode"]
    return found


@pytest.mark.parametrize(("processed", "expected"), [(True, "processed_logprobs"), (False, "raw_logprobs")])
async def test_the_logprobs_mode_is_detected_at_the_first_turn_and_kept(processed: bool, expected: str) -> None:
    async with open_episode(TokenEngine([TEXT_TURN], processed_logprobs=processed), token_in="off") as client:
        assert mode(await client.ask()) == expected
        requests_before = len(client.engine.requests)
        client.engine.processed_logprobs = not processed
        assert mode(await client.ask(user_message("on"))) == expected
    assert client.engine.paths[requests_before:] == ["completions"]


@pytest.mark.parametrize("processed", [True, False])
async def test_an_engine_with_another_logprobs_mode_than_the_settings_require_is_refused(processed: bool) -> None:
    found, required = ("processed_logprobs", "raw_logprobs")[:: 1 if processed else -1]
    async with open_episode(TokenEngine([TEXT_TURN], processed_logprobs=processed), logprobs_mode=required) as client:
        status, problem = await client.send("/v1/responses", {"input": "go"})
    assert (status, problem["type"]) == (400, "urn:rollyard:upstream_refused")
    assert f"runs with --logprobs-mode {found}; expected {required}" in problem["detail"]


async def test_each_engines_own_logprobs_mode_is_recorded() -> None:
    engines = TokenEngine([TEXT_TURN], processed_logprobs=True), TokenEngine([TEXT_TURN], processed_logprobs=False)
    async with open_episode(*engines) as client:
        found = {mode((await client.send("/v1/responses", {"input": "go"}))[1]["output"][-1]) for _ in range(4)}
    assert found == {"processed_logprobs", "raw_logprobs"}


def as_logits(answer: Json) -> Json:
    answer["choices"][0]["logprobs"]["top_logprobs"] = [{"a": next(LOGITS)}]
    return answer


LOGITS = itertools.cycle([7.5, 3.75])


async def test_an_engine_that_returns_logits_is_refused() -> None:
    async with open_episode(Changed([TEXT_TURN], "/completions", as_logits)) as client:
        status, problem = await client.send("/v1/responses", {"input": "go"})
    assert status == 400
    assert "--logprobs-mode processed_logits; expected raw_logprobs or processed_logprobs" in problem["detail"]


async def test_the_mode_of_an_engine_that_cannot_be_probed_is_unknown_and_its_turns_are_valid() -> None:
    async with open_episode(Changed([TEXT_TURN], "/v1/completions", refuse())) as client:
        assert mode(await client.ask()) == "unknown"
        requests_before = len(client.engine.requests)
        assert mode(await client.ask(user_message("on"))) == "unknown"
    assert "/v1/completions" not in [path for path, _ in client.engine.requests[requests_before:]]


@pytest.mark.parametrize(
    ("has_token_endpoints", "token_in", "backend"),
    [(True, "auto", "generate"), (False, "auto", "completions"), (True, "completions", "completions")],
)
async def test_the_token_backend_is_the_one_of_the_settings_or_the_first_that_the_engine_offers(
    has_token_endpoints: bool, token_in: str, backend: str
) -> None:
    async with open_episode(
        TokenEngine([TEXT_TURN], has_token_endpoints=has_token_endpoints), token_in=token_in
    ) as client:
        await client.ask()
        items = [await client.ask(user_message("on")) for _ in range(2)]
    assert [item["token_trace"]["way"] for item in items] == [backend, backend]
    probes = [body for path, body in client.engine.requests if path.endswith("/render") and "tools" not in body]
    assert len(probes) == (token_in == "auto")


async def test_an_engine_whose_probe_fails_is_not_treated_as_one_without_the_endpoints() -> None:
    engine = Changed([TEXT_TURN], "/render", refuse(503))
    async with open_episode(engine, max_attempts=1) as client:
        failed, problem = await client.send("/v1/responses", {"input": "go"})
        engine.change = lambda answer: answer
        item = await client.ask()
    assert (failed, problem["type"]) == (502, "urn:rollyard:upstream_error")
    assert item["token_trace"]["way"] == "generate"


# Hermes tool calls are parsed from text as vLLM's own parser does.

CALL = '<tool_call>\n{"name": "push", "arguments": {"to": "up"}}\n</tool_call>'


def functions(message: Json) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]


@settings(max_examples=40)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4), st.text(min_size=1))
def test_a_call_keeps_its_name_and_arguments(value: object, name: str) -> None:
    arguments = {"value": value}
    text = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    ((found, arguments_text),) = functions(read_hermes(text))
    assert (found, json.loads(arguments_text)) == (name, arguments)


def test_arguments_are_spaced_as_vllm_does_and_not_escaped() -> None:
    text = '<tool_call>{"name":"push","arguments":{"to":"√","far":[1,2]}}</tool_call>'
    assert functions(read_hermes(text)) == [("push", '{"to": "√", "far": [1, 2]}')]


UNREADABLE = ("not json", '{"name": "push"', "[]", '"push"', '{"arguments": {}}', "", "[" * 2000)
HALF_SURROGATE = '{"name": "push", "arguments": {"a": "\\ud800"}}'


@pytest.mark.parametrize("inside", [*UNREADABLE, HALF_SURROGATE, '{"name": 3, "arguments": {}}'])
def test_unreadable_calls_stay_in_the_content_and_good_ones_beside_them_are_calls(inside: str) -> None:
    bad = f"<tool_call>{inside}</tool_call>"
    assert read_hermes(f"I go. {bad} so") == {"role": "assistant", "content": f"I go. {bad} so"}
    for text in (f"I go. {CALL}{bad}", f"I go. {bad}\n{CALL}"):
        message = read_hermes(text)
        assert functions(message) == [("push", '{"to": "up"}')]
        assert message["content"] == f"I go. {bad}"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            '<tool_call>{"name": "note", "arguments": {"text": "a </tool_call> b <tool_call> c"}}</tool_call>',
            [("note", {"text": "a </tool_call> b <tool_call> c"})],
        ),
        ('<tool_call>{"name":"now"}</tool_call>', [("now", {})]),
        ('<tool_call>{"name":"a", "parameters": {"x": 1}}</tool_call>', [("a", {"x": 1})]),
        ('<tool_call>{"name": "a"}\n{"name": "b", "arguments": {"x": 1}}</tool_call>', [("a", {}), ("b", {"x": 1})]),
        ('<tool_call>{"name": "a"}, {"name": "b"}</tool_call>', [("a", {}), ("b", {})]),
        ('<tool_call>[{"name": "a"}, {"name": "b"}]</tool_call>', [("a", {}), ("b", {})]),
        ('<tool_call>{"name": "a"}\n<tool_call>{"name": "b"}</tool_call>', [("a", {}), ("b", {})]),
        ('<tool_call>{"name": "a"}\n{"name": broken}</tool_call><tool_call>{"name": "b"}', [("a", {}), ("b", {})]),
        ('<tool_call>{"name": "a"}<|im_end|>', [("a", {})]),
    ],
)
def test_every_call_that_can_be_read_is_read(text: str, calls: list[tuple[str, Json]]) -> None:
    found = functions(read_hermes(text))
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


def test_reasoning_is_neither_content_nor_a_call() -> None:
    text = f"<think>{CALL}</think>no"
    message = {"role": "assistant", "content": "no", "reasoning_content": CALL}
    assert read_plain(text) == read_hermes(text) == message


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
