"""vllm_model in front of a scripted engine: its requests, its responses and its failures."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from openai.types.responses import Response

from rollyard.records.errors import OperatorError
from rollyard.records.types import FinishReason, Json
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from tests.support.scripted_engine import COMPLETION, Step, completion, engine, model_server, post_json
from tests.support.token_clients import TEXT_TURN, open_episode
from tests.support.token_engine import TokenEngine

HI: Json = {"input": "hi"}
CHAT: Json = {"messages": [{"role": "user", "content": "hi"}]}


def with_tokens() -> Json:
    answer = completion({"content": "hi"}, prompt_token_ids=[1, 2])
    entries = [{"token": "h", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    answer["choices"][0].update(token_ids=[3], logprobs={"content": entries})
    return answer


async def engine_request(request: Json, path: str = "/v1/responses", **settings: Any) -> Json:
    async with engine() as fake, model_server(VllmModel, base_url=fake.url, **settings) as server:
        answer, body = await post_json(server, path, request)
        assert answer.status == 200, body
        return fake.requests[0]


async def test_a_response_is_valid_and_repeats_its_request() -> None:
    async with engine({**COMPLETION, "odd": {"deep": 1}}) as fake, model_server(VllmModel, base_url=fake.url) as server:
        tools = [{"type": "function", "name": "step", "parameters": {"type": "object"}, "strict": True}]
        _, body = await post_json(
            server, "/v1/responses", {**HI, "tools": tools, "temperature": 0.8, "metadata": {"a": "b"}}
        )
    response = Response.model_validate(body)
    assert response.output_text == "hello"
    assert (response.temperature, response.metadata) == (0.8, {"a": "b"})
    assert (body["tools"], body["odd"]) == (tools, {"deep": 1})


async def test_the_model_name_of_the_settings_replaces_that_of_the_request() -> None:
    assert (await engine_request({**HI, "model": "other"}))["model"] == "engine-model"
    assert (await engine_request({**CHAT, "model": "other"}, "/v1/chat/completions"))["model"] == "engine-model"


async def test_a_chat_call_keeps_unknown_fields_and_the_bytes_of_the_answer() -> None:
    body = b' {"choices": [{"message": {"content": "a"}}], "odd":  1}\n'
    async with engine(Step(body)) as fake, model_server(VllmModel, base_url=fake.url) as server:
        answer, _ = await post_json(server, "/v1/chat/completions", {**CHAT, "guided_regex": "a+", "n": 2})
    assert fake.requests[0] == {**CHAT, "guided_regex": "a+", "n": 2, "model": "engine-model"}
    assert answer.body == body


async def test_with_recorded_tokens_a_stream_is_made_from_the_complete_answer() -> None:
    for path, request_ in [("/v1/responses", HI), ("/v1/chat/completions", CHAT)]:
        settings: Json = {"return_token_id_information": True, "logprobs_mode": "raw_logprobs", "token_in": "off"}
        async with engine(with_tokens()) as fake, model_server(VllmModel, base_url=fake.url, **settings) as server:
            answer, _ = await post_json(server, path, {**request_, "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert b'"generation_token_ids":[3]' in answer.body
        assert not any("stream" in request for request in fake.requests)


async def test_extra_body_yields_to_the_request_and_sampling_overrides_do_not() -> None:
    for path in ["/v1/responses", "/v1/chat/completions"]:
        request = {**(HI if path == "/v1/responses" else CHAT), "top_p": 0.5, "temperature": 0.2}
        extra = {"top_p": 0.9, "top_k": 20}
        body = await engine_request(request, path, extra_body=extra, sampling_overrides={"temperature": 1.0})
        assert (body["top_p"], body["top_k"], body["temperature"]) == (0.5, 20, 1.0)


async def test_a_rows_metadata_takes_precedence_over_the_settings_and_does_not_change_them() -> None:
    metadata = {"extra_body": '{"seed": 3}', "chat_template_kwargs": '{"enable_thinking": true}'}
    settings = {"extra_body": {"seed": 1}, "chat_template_kwargs": {"enable_thinking": False, "a": 1}}
    for path, request in (("/v1/responses", HI), ("/v1/chat/completions", CHAT)):
        async with engine() as fake, model_server(VllmModel, base_url=fake.url, **settings) as server:
            await post_json(server, path, {**request, "metadata": metadata})
            await post_json(server, path, dict(request))
        first, second = fake.requests
        assert (first["seed"], first["chat_template_kwargs"]) == (3, {"enable_thinking": True, "a": 1})
        assert (second["seed"], second["chat_template_kwargs"]) == (1, {"enable_thinking": False, "a": 1})
        assert "metadata" not in first


@pytest.mark.parametrize(("mapped", "role"), [(True, "system"), (False, "developer")])
async def test_the_developer_role_is_mapped_as_the_settings_say(mapped: bool, role: str) -> None:
    conversation = [{"role": "developer", "content": "x"}]
    for path, request in ((PATHS[0], {"input": conversation}), (PATHS[1], {"messages": conversation})):
        body = await engine_request(request, path, replace_developer_role_with_system=mapped)
        assert body["messages"][0]["role"] == role


async def test_reasoning_is_sent_back_in_the_configured_field() -> None:
    output = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}]
    message = (await engine_request({"input": output}, reasoning_field="reasoning"))["messages"][0]
    assert message == {"role": "assistant", "content": "", "reasoning": "hm"}


def error(message: str, **more: Json | str | int | None) -> Json:
    return {"error": {"message": message, "type": "BadRequestError", "code": 400, **more}}


TOO_LONG = "This model's maximum context length is 2048 tokens. However, "
OVERFLOWS: dict[str, Json] = {
    "vLLM 0.32, chat": error(
        f"{TOO_LONG}your prompt contains at least 2049 input tokens, which exceeds this limit even without any output "
        "tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=2049)",
        param="input_tokens",
    ),
    "vLLM 0.32, a prompt that just fills it": error(
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", param="max_tokens"
    ),
    "vLLM 0.32, generate": error(
        "The decoder prompt (length 2100) is longer than the maximum model length of 2048. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens."
    ),
    "vLLM 0.32, generate, a prompt that just fills it": error(
        "The decoder prompt (length 2048) plus the number of requested output tokens (at least 1) is longer than the "
        "maximum model length of 2048. Make sure that `max_model_len` is no smaller than the number of text tokens "
        "(prompt + requested output tokens)."
    ),
    "vLLM 0.8": {
        "object": "error",
        "message": f"{TOO_LONG}you requested 4000 tokens (1952 in the messages, 2048 in the completion). Please reduce "
        "the length of the messages or completion.",
        "type": "BadRequestError",
        "code": 400,
    },
    "OpenAI": error(
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        type="invalid_request_error",
        param="input",
        code="context_length_exceeded",
    ),
    "SGLang": {
        "object": "error",
        "message": "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    },
    "llama.cpp": error("the request exceeds the available context size, try increasing it"),
}
REFUSALS: dict[str, Json] = {
    "a limit above the context": error(
        "max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer output tokens."
    ),
    "no such model": error("The model `x` does not exist."),
    "a bad parameter": error("temperature must be non-negative, got -1.0.", param="temperature"),
    "a template that refuses": error("Conversation roles must alternate user/assistant/user/assistant/..."),
}
PATHS = ["/v1/responses", "/v1/chat/completions"]


async def problems_of(path: str, bodies: dict[str, Json]) -> dict[str, Json]:
    steps = [Step(body, 400) for body in bodies.values()]
    async with engine(*steps) as fake, model_server(VllmModel, base_url=fake.url) as server:
        problems = {case: (await post_json(server, path, {**HI, **CHAT}))[1] for case in bodies}
        assert len(fake.requests) == len(bodies)
        return problems


@pytest.mark.parametrize("path", PATHS)
async def test_every_engines_overflow_message_becomes_the_same_failure(path: str) -> None:
    for case, problem in (await problems_of(path, OVERFLOWS)).items():
        assert (problem["type"], problem["status"]) == ("urn:rollyard:context_overflow", 400), case
        assert problem["code"] == "context_length_exceeded"


async def test_another_refusal_is_not_an_overflow() -> None:
    for case, problem in (await problems_of(PATHS[0], REFUSALS)).items():
        assert problem["type"] == "urn:rollyard:upstream_refused", case


LIMITS = {
    "/v1/responses": ["max_output_tokens", "max_tokens"],
    "/v1/chat/completions": ["max_tokens", "max_completion_tokens"],
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("records", [True, False])
async def test_a_limit_that_leaves_no_token_is_a_bad_request_and_not_an_overflow(path: str, records: bool) -> None:
    async with open_episode(TokenEngine([TEXT_TURN]), return_token_id_information=records) as client:
        for name, value, stream in itertools.product(LIMITS[path], [0, -0.5, False], (False, True)):
            status, problem = await client.send(path, {**HI, **CHAT, "stream": stream, name: value})
            assert (status, problem["type"]) == (400, "urn:rollyard:bad_request")
            assert problem["detail"].startswith(f"{name}: found {value}")
    assert not client.engine.requests


async def test_a_limit_that_leaves_no_token_is_also_refused_in_settings_and_row_metadata() -> None:
    metadata = {"metadata": {"extra_body": '{"max_tokens": 0}'}}
    in_settings = {"extra_body": {"max_tokens": 0}}, {"sampling_overrides": {"max_completion_tokens": 0}}
    for settings, params in (*((one, {}) for one in in_settings), ({}, metadata)):
        async with open_episode(TokenEngine([TEXT_TURN]), **settings) as client:
            status, problem = await client.send("/v1/responses", {**HI, **params})
        assert (status, problem["type"]) == (400, "urn:rollyard:bad_request")


@pytest.mark.parametrize("setting", ["extra_body", "sampling_overrides"])
def test_whole_numbers_in_settings_are_integers_and_others_are_refused(setting: str) -> None:
    base: Json = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
    found = VllmModelSettings(**base, **{setting: {"top_k": 1e1, "temperature": 1.0, "seed": None}})
    assert repr(getattr(found, setting)["top_k"]) == "10"
    with pytest.raises(OperatorError, match=rf"{setting}\.top_k is 1\.5; expected an integer"):
        VllmModelSettings(**base, **{setting: {"top_k": 1.5}})


TOOLS = [{"type": "function", "name": "push", "parameters": {"type": "object"}}]
CALL: Json = {"id": "c", "type": "function", "function": {"name": "push", "arguments": "{}"}}
UNREADABLE = [
    '<tool_call>{"name": "push", </tool_call>',
    'I push.\n<tool_call>\n{"name": push}',
    "<|tool_call_begin|>functions.push",
    "[TOOL_CALLS][{",
    "<function=push><parameter=to>up",
    "<｜tool▁calls▁begin｜>push",
]


async def response_to(message: Json, finish_reason: str = "stop", **request: Any) -> Json:
    async with engine(completion(message, finish_reason)) as fake, model_server(VllmModel, base_url=fake.url) as server:
        return (await post_json(server, "/v1/responses", {"input": "go", "tools": TOOLS, **request}))[1]


@pytest.mark.parametrize("text", UNREADABLE)
async def test_a_call_that_stayed_in_the_text_is_reported(text: str) -> None:
    response = await response_to({"content": text})
    assert response.get("finish_reason") == FinishReason.UNREADABLE_CALL
    assert response["output"][0]["content"][0]["text"] == text


@pytest.mark.parametrize(
    ("message", "finish_reason", "request_"),
    [
        *(({"content": text}, "stop", {}) for text in ("I am done.", "if a < b then <b>push</b>", "function=push")),
        ({"content": UNREADABLE[0], "tool_calls": [CALL]}, "tool_calls", {}),
        ({"content": UNREADABLE[1]}, "length", {}),
        ({"content": UNREADABLE[0]}, "stop", {"tools": []}),
    ],
)
async def test_plain_text_a_parsed_call_and_a_truncated_one_are_not_reported(
    message: Json, finish_reason: str, request_: Json
) -> None:
    response = await response_to(message, finish_reason, **request_)
    assert (response["status"], "finish_reason" in response) == (
        "incomplete" if finish_reason == "length" else "completed",
        False,
    )
