"""Conversion between Responses and Chat Completions loses, reorders and judges nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import Keys
from rollyard.records.types import Json
from rollyard.responses_api_models import conversion
from rollyard.responses_api_models.builtin_model.app import BuiltinModel
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.request import Receive, Scope, Send
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context, Server
from tests.support.scripted_engine import COMPLETION, completion, empty_directory, engine, model_server, post_json
from tests.unit.responses_api_models.chat_engine.test_empty_answers import RESPONSE

ONE_REASONING = conversion.Dialect(reasoning_fields=("reasoning_content",))
THINKING = conversion.Dialect(think_tags=True)
TOOL: Json = {"type": "function", "name": "step", "description": "d", "parameters": {"type": "object"}, "strict": True}

some_text = st.text(min_size=1, max_size=20)
calls = st.lists(
    st.fixed_dictionaries({"call_id": some_text, "name": some_text, "arguments": st.text(max_size=20)}),
    max_size=3,
    unique_by=lambda call: call["call_id"],
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Json]:
    """Complete turns: a message, then the model's reasoning, text and calls, and an output for every call."""
    items: list[Json] = []
    for _ in range(draw(st.integers(1, 4))):
        items.append({"role": draw(st.sampled_from(["user", "system"])), "content": draw(some_text)})
        if reasoning := draw(st.text(max_size=20)):
            items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]})
        if text := draw(st.text(max_size=20)):
            items.append({"role": "assistant", "content": [{"type": "output_text", "text": text}]})
        turn_calls = draw(calls)
        items += [{"type": "function_call", **call} for call in turn_calls]
        items += [
            {"type": "function_call_output", "call_id": call["call_id"], "output": draw(some_text)}
            for call in turn_calls
        ]
    return items


def comparable(item: Json) -> tuple[Any, ...]:
    kind = item.get("type", "message")
    if kind == "message":
        content = item["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        return (item["role"], text)
    if kind == "reasoning":
        return (kind, "".join(part["text"] for part in item["summary"]))
    return tuple(item.get(key) for key in ("type", "call_id", "name", "arguments", "output"))


@settings(max_examples=50)
@given(conversations())
def test_a_round_trip_keeps_all_ids_names_arguments_and_texts_in_order(items: list[Json]) -> None:
    chat = conversion.request_to_chat({"input": items}, ONE_REASONING)
    back = conversion.chat_request_to_responses(chat)
    assert [comparable(item) for item in back["input"]] == [comparable(item) for item in items]
    assert conversion.request_to_chat(back, ONE_REASONING) == chat


@settings(max_examples=50)
@given(st.text(max_size=20), st.text(max_size=20), calls)
def test_an_answer_becomes_a_valid_response_which_sent_back_is_the_engines_message(
    reasoning: str, text: str, drawn_calls: list[Json]
) -> None:
    message: Json = {"role": "assistant", "content": text or None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if drawn_calls:
        message["tool_calls"] = [
            {"id": c["call_id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in drawn_calls
        ]
    elif not text:
        message["content"] = ""
    response = conversion.chat_to_response(completion(message), {"input": "x", "tools": [TOOL]})
    chat = conversion.request_to_chat({"input": response["output"]}, ONE_REASONING)
    assert chat["messages"] == [message]
    Response.model_validate(response, strict=True)
    ChatCompletion.model_validate(conversion.response_to_chat(response))


@settings(max_examples=50)
@given(st.text(max_size=20), st.text(max_size=20))
def test_think_tags_are_sent_back_as_they_were_received(reasoning: str, text: str) -> None:
    content = f"<think>{reasoning}</think>{text}"
    response = conversion.chat_to_response(completion({"content": content}), {"input": "x"}, THINKING)
    chat = conversion.request_to_chat({"input": response["output"]}, THINKING)
    assert chat["messages"][0]["content"] == (content if reasoning else text)


def chat(**request: Any) -> Json:
    return conversion.request_to_chat({"input": "hi", **request})


def test_images_and_texts_keep_their_order() -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
    ]
    request = {"input": [{"role": "user", "content": parts}]}
    content = conversion.request_to_chat(request)["messages"][0]["content"]
    assert content == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
    ]
    back = conversion.chat_request_to_responses({"messages": [{"role": "user", "content": content}]})
    assert back["input"][0]["content"] == parts


def test_parameters_are_renamed_both_ways() -> None:
    request: Json = {
        "input": [{"type": "message", "role": "user", "content": "hi"}],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "step"},
        "parallel_tool_calls": False,
        "max_output_tokens": 9,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 3,
        "temperature": 0.0,
        "top_p": 0.9,
        "seed": 0,
        "stop": ["x"],
        "user": "u",
        "metadata": {"a": "b"},
        "an_unknown_field": {"x": [1]},
    }
    body = conversion.request_to_chat(request)
    assert body["tools"][0]["function"] == {key: value for key, value in TOOL.items() if key != "type"}
    assert body["tool_choice"] == {"type": "function", "function": {"name": "step"}}
    assert (body["max_tokens"], body["reasoning_effort"]) == (9, "low")
    assert (body["logprobs"], body["top_logprobs"]) == (True, 3)
    assert body["response_format"]["json_schema"] == {"name": "n", "schema": {"type": "object"}, "strict": True}
    assert conversion.chat_request_to_responses(body) == request


def test_files_refusals_and_allowed_tools_survive_both_conversions() -> None:
    file = {"type": "input_file", "file_id": "f1", "filename": "a.pdf"}
    said: list[Json] = [{"type": "output_text", "text": "so", "annotations": []}, {"type": "refusal", "refusal": "no"}]
    request: Json = {
        "input": [{"role": "user", "content": [file]}, {"role": "assistant", "content": said}],
        "tools": [TOOL],
        "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "step"}]},
        "text": {"verbosity": "low"},
    }
    body = conversion.request_to_chat({**request, "truncation": "disabled"})
    first, second = body["messages"]
    assert first["content"] == [{"type": "file", "file": {"file_id": "f1", "filename": "a.pdf"}}]
    assert (second["content"], second["refusal"], "truncation" in body) == ("so", "no", False)
    back = conversion.chat_request_to_responses(body)
    assert {key: back[key] for key in ("tools", "tool_choice", "text")} == {
        key: request[key] for key in ("tools", "tool_choice", "text")
    }
    assert back["input"][0]["content"] == [file]
    assert [part["type"] for part in back["input"][1]["content"]] == ["output_text", "refusal"]
    again = conversion.request_to_chat({**request, "tools": body["tools"], "tool_choice": body["tool_choice"]})
    assert again == body  # tools in the form of chat requests are sent as they are


def test_fields_without_a_value_are_not_sent() -> None:
    body = chat(temperature=None, tools=[], tool_choice="auto", parallel_tool_calls=True, metadata={}, stream=None)
    assert body == {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_unfinished_answer_is_incomplete_with_the_reason(finish: str, reason: str) -> None:
    response = conversion.chat_to_response(completion({"content": "half"}, finish), {"input": "x"})
    Response.model_validate(response)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert response["output"][-1]["status"] == "incomplete"
    assert conversion.response_to_chat(response)["choices"][0]["finish_reason"] == finish


def test_usage_keeps_cached_and_reasoning_tokens() -> None:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    response = conversion.chat_to_response(completion({"content": "x"}, usage=usage), {"input": "x"})
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 3
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 2
    back = conversion.response_to_chat(response)["usage"]
    assert back == usage


def test_a_usage_without_details_gets_its_own_zeros() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    first, second = (conversion.chat_to_response(completion({"content": "x"}, usage=usage), {}) for _ in range(2))
    first["usage"]["input_tokens_details"]["cached_tokens"] = 3
    assert second["usage"]["input_tokens_details"]["cached_tokens"] == 0


TOKENS: Json = {"prompt_token_ids": [1, 2], "generation_token_ids": [3, 4], "generation_log_probs": [-0.5, -0.25]}


def with_tokens(logprobs: list[float]) -> Json:
    answer = completion({"content": "hi", "reasoning": "hm"}, prompt_token_ids=[1, 2])
    entries: list[Json] = [{"token": "x", "logprob": value, "bytes": None, "top_logprobs": []} for value in logprobs]
    answer["choices"][0].update(token_ids=[3, 4], logprobs={"content": entries})
    return answer


def test_the_last_item_of_a_call_carries_the_engines_tokens_which_go_back_only_to_an_engine_that_reads_them() -> None:
    output = conversion.chat_to_response(with_tokens([-0.5, -0.25]), {"input": "x"})["output"]
    assert {key: output[-1][key] for key in TOKENS} == TOKENS and not TOKENS.keys() & output[0].keys()
    assert output[-1]["content"][0]["logprobs"] == []  # not requested, so not sent twice
    plain = conversion.request_to_chat({"input": output})["messages"][0]
    sent = conversion.request_to_chat({"input": output}, conversion.Dialect(send_token_ids=True))["messages"][0]
    assert not TOKENS.keys() & plain.keys()
    assert {key: sent[key] for key in TOKENS} == TOKENS


@pytest.mark.parametrize(
    ("content", "reasoning", "text"),
    [
        ("<think>a</think>\n\nb", "a", "\n\nb"),
        ("\n<think>a</think>b", "a", "b"),
        ("a</think>b", "a", "b"),
        ("<think>cut off", "cut off", ""),
        ("plain", "", "plain"),
        ("first <think>a</think>", "", "first <think>a</think>"),
    ],
)
def test_reasoning_is_split_off_only_at_the_beginning(content: str, reasoning: str, text: str) -> None:
    output = conversion.chat_to_response(completion({"content": content}), {"input": "x"}, THINKING)["output"]
    assert [comparable(item)[1] for item in output] == [text for text in (reasoning, text) if text]


@pytest.mark.parametrize("answer", [{}, completion({"content": 7}), completion({"content": "x"}, usage=[1])], ids=str)
def test_an_unreadable_answer_is_malformed(answer: Json) -> None:
    with pytest.raises(Failure) as caught:
        conversion.chat_to_response(answer, {"input": "x"})
    assert caught.value.kind is FailureKind.MALFORMED_ANSWER


OK: Json = {"role": "user", "content": "ok"}
HOLOGRAM: Json = {"role": "user", "content": [{"type": "hologram"}]}
ITEMS: list[tuple[Any, str]] = [
    ({"type": "item_reference", "id": "x"}, "item_reference"),
    ({"role": "oracle", "content": "x"}, "oracle"),
    ({"type": "function_call", "name": "step", "arguments": "{}"}, "call_id"),
    ({"type": "function_call_output", "call_id": "1"}, "output"),
    (HOLOGRAM, "hologram"),
    ({"role": "user", "content": [{"type": "input_text"}]}, "text"),
    ({"role": "user"}, "content"),
    ("hi", "hi"),
]
REFUSED: list[tuple[Any, Json, str]] = [
    *((conversion.request_to_chat, {"input": [OK, item]}, f"input[1].*{found}") for item, found in ITEMS),
    (conversion.request_to_chat, {"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
    (conversion.request_to_chat, {"input": "x", "tools": [{"type": "web_search"}]}, "web_search"),
    (conversion.request_to_chat, {"input": "x", "metadata": {"extra_body": "{"}}, "metadata.extra_body"),
    (conversion.request_to_chat, {"input": "x", "metadata": {"chat_template_kwargs": "[1]"}}, "chat_template_kwargs"),
    (conversion.chat_request_to_responses, {}, "messages"),
    (conversion.chat_request_to_responses, {"messages": ["x"]}, "messages[0]"),
    (conversion.chat_request_to_responses, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
    (conversion.chat_request_to_responses, {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "tool_calls"),
    (conversion.chat_request_to_responses, {"messages": [HOLOGRAM]}, "hologram"),
    (conversion.chat_request_to_responses, {"messages": [], "n": 2}, "n: found 2"),
]


@pytest.mark.parametrize(("convert", "request_", "found"), REFUSED)
def test_what_cannot_be_converted_is_a_bad_request_that_names_it(convert: Any, request_: Json, found: str) -> None:
    with pytest.raises(Failure, match=found.replace("[", r"\[")) as caught:
        convert(request_)
    assert caught.value.kind is FailureKind.BAD_REQUEST


CALL: Json = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESPONSES_REQUESTS: list[tuple[str, Json]] = [
    ("reasoning", {"reasoning": "high"}),
    ("reasoning.effort", {"reasoning": {"effort": ["high"]}}),
    ("text", {"text": "json"}),
    ("text.format", {"text": {"format": "json_object"}}),
    ("tools[0]", {"tools": [1]}),
    ("tools", {"tools": "step"}),
    ("tools[1].function", {"tools": [{"type": "function", "name": "f"}, {"type": "function", "function": "f"}]}),
    ("tool_choice", {"tools": [{"type": "function", "name": "f"}], "tool_choice": 7}),
    ("instructions", {"instructions": ["be brief"]}),
    ("include", {"include": "everything"}),
    ("metadata", {"metadata": "x"}),
    ("stream_options", {"stream_options": "usage", "stream": True}),
    ("top_logprobs", {"top_logprobs": "5"}),
    ("input", {"input": 5}),
]
CONVERTED_REQUESTS: list[tuple[str, Json]] = [
    ("tool_choice", {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function"}}),
    ("tool_choice.tools", {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "allowed_tools"}}),
    ("input[0]", {"input": [1]}),
    ("input[0]", {"input": [{"role": "user"}]}),
    ("input[0].content", {"input": [{"role": "user", "content": 5}]}),
    ("input[1]", {"input": [CALL, {"type": "reasoning", "summary": [5]}]}),
]
CHAT_REQUESTS: list[tuple[str, Json]] = [
    ("messages", {"messages": "hi"}),
    ("messages[0]", {"messages": ["hi"]}),
    ("messages[0].tool_calls", {"messages": [{"role": "assistant", "tool_calls": "step"}]}),
    ("response_format", {"response_format": "json"}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema", "json_schema": "x"}}),
    ("reasoning_effort", {"reasoning_effort": {"effort": "high"}}),
    ("tools[0]", {"tools": [None]}),
    ("stream_options", {"stream_options": True, "stream": True}),
]
MODEL_SERVERS: list[type[Server]] = [VllmModel, OpenaiModel, BuiltinModel]


async def check_refusals(kind: type[Server], path: str, requests: list[tuple[str, Json]], **options: Any) -> None:
    base: Json = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    async with engine() as fake:
        endpoint = {} if kind is BuiltinModel else {"base_url": fake.url}
        async with model_server(kind, **endpoint, **options) as server:
            for field, request in requests:
                answer, problem = await post_json(server, path, {**base, **request})
                assert (answer.status, problem["type"]) == (400, "urn:rollyard:bad_request"), request
                assert problem["detail"].startswith(f"{field}:")
    assert fake.requests == []


@pytest.mark.parametrize("kind", MODEL_SERVERS)
async def test_a_malformed_request_is_refused_with_its_fields_name(kind: type[Server]) -> None:
    await check_refusals(kind, "/v1/responses", RESPONSES_REQUESTS)
    await check_refusals(kind, "/v1/chat/completions", CHAT_REQUESTS)


@pytest.mark.parametrize("tokens", [False, True])
async def test_a_request_that_cannot_become_a_chat_request_is_refused_with_its_fields_name(tokens: bool) -> None:
    options = {"return_token_id_information": tokens, "logprobs_mode": "raw_logprobs"}
    await check_refusals(VllmModel, "/v1/responses", CONVERTED_REQUESTS, **options)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.just(CALL),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "function", "name", "format", "tools", "role", "content", "json_schema", "effort"])
            | st.sampled_from(["summary", "text", "output", "call_id", "tool_calls", "arguments", "extra_body", "id"]),
            inner | st.sampled_from(["function", "assistant", "user", "tool", "message", "reasoning", "allowed_tools"]),
            max_size=3,
        )
    ),
    max_leaves=6,
)
FIELDS = (
    *("input", "messages", "instructions", "tools", "tool_choice", "text", "reasoning", "metadata", "include"),
    *("response_format", "stream_options", "chat_template_kwargs", "top_logprobs", "max_output_tokens", "n"),
    *("logprobs",),
    *("prompt_cache_key", "reasoning_effort", "verbosity", "seed", "temperature", "parallel_tool_calls", "stop"),
)


async def healthy_engine(scope: Scope, receive: Receive, send: Send) -> None:
    answer = RESPONSE if scope["path"].endswith("/responses") else COMPLETION
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": orjson.dumps(answer)})


async def status_of(kind: type[Server], path: str, request: Json) -> int:
    transport, keys = LocalTransport(HttpTransport()), Keys(run_id="run-1", secret="secret")
    transport.mount("http://engine:1", healthy_engine)
    endpoint = {} if kind is BuiltinModel else {"base_url": "http://engine:1/v1"}
    parsed = kind.Settings.model_validate({"model": "engine-model", **endpoint})
    server = kind(parsed, Context("policy_model", keys, ServerClient(transport, keys, AddressBook(empty_directory))))
    return (await post_json(server, path, request))[0].status


@pytest.mark.parametrize("kind", MODEL_SERVERS)
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@settings(max_examples=15)
@given(request=st.dictionaries(st.sampled_from(FIELDS), values, max_size=4), complete=st.booleans())
def test_no_create_request_causes_an_internal_error(
    kind: type[Server], path: str, request: Json, complete: bool
) -> None:
    base: Json = {"input": "hi", "messages": [{"role": "user", "content": "hi"}]} if complete else {}
    assert asyncio.run(status_of(kind, path, {**base, **request})) in (200, 400)
