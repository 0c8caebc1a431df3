"""Conversion between Responses and Chat Completions loses, reorders and judges nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models import conversion
from tests.support.scripted_engine import completion

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
