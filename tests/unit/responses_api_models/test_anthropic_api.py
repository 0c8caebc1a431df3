"""Create requests of Anthropic's Messages API become Responses create requests, or are refused with their place."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.anthropic_api import (
    MessageEvents,
    StopSequences,
    messages_to_responses,
    response_to_message,
)
from rollyard.responses_api_models.upstream.sse import data_of
from rollyard.services.responses import stream_events

HELLO: Json = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
IMAGE: Json = {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}}

DOCUMENT: Json = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVB="}}
INLINE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}


def user(*blocks: Json) -> Json:
    return {**HELLO, "messages": [{"role": "user", "content": list(blocks)}]}


CHOICES = {"auto": "auto", "any": "required", "none": "none", "tool": {"type": "function", "name": "step"}}


@pytest.mark.parametrize("kind", CHOICES)
def test_a_tool_and_its_choice_are_converted(kind: str) -> None:
    tool = {"name": "step", "description": "Moves.", "input_schema": {"type": "object"}, "cache_control": {"type": "x"}}
    choice = {"type": kind, "name": "step", "disable_parallel_tool_use": True}
    converted = messages_to_responses({**HELLO, "tools": [tool], "tool_choice": choice})
    assert converted["tools"] == [
        {"type": "function", "name": "step", "parameters": {"type": "object"}, "description": "Moves."}
    ]
    assert (converted["tool_choice"], converted["parallel_tool_calls"]) == (CHOICES[kind], False)


PNG = "data:image/png;base64,iVBO"


def result(content: Any, **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **more}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (IMAGE, ["https://example.com/cat.png"]),
        (INLINE, [PNG]),
        (result("no such door", is_error=True), '{"error":"no such door"}'),
        (
            result([{"type": "text", "text": "before"}, INLINE, {"type": "text", "text": "after"}]),
            ["before", PNG, "after"],
        ),
        (result([INLINE], is_error=True), ["error:", PNG]),
    ],
)
def test_images_and_errors_keep_their_place(block: Json, expected: Any) -> None:
    item = messages_to_responses(user(block))["input"][0]
    found = item.get("output") or item["content"]
    assert (found if isinstance(found, str) else [p.get("text") or p["image_url"] for p in found]) == expected


def test_a_message_of_the_system_within_the_conversation_keeps_its_place() -> None:
    later = {"role": "system", "content": "Be brief."}
    converted = messages_to_responses({**HELLO, "messages": [*HELLO["messages"], later]})["input"]
    content = [{"type": "input_text", "text": "Be brief."}]
    assert converted[1] == {"type": "message", "role": "system", "content": content}


def test_a_field_of_neither_api_is_passed_on() -> None:
    converted = messages_to_responses({**HELLO, "top_k": 5, "chat_template_kwargs": {"a": 1}, "temperature": 0.5})
    assert (converted["top_k"], converted["chat_template_kwargs"], converted["temperature"]) == (5, {"a": 1}, 0.5)


def test_a_schema_for_the_answer_becomes_a_text_format() -> None:
    wanted = {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"}
    converted = messages_to_responses({**HELLO, "output_config": wanted})
    assert converted["text"]["format"]["schema"] == {"type": "object"}
    assert converted["reasoning"] == {"effort": "low"}


def said(role: str, *blocks: Json) -> Json:
    return {"messages": [{"role": role, "content": list(blocks)}]}


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


REFUSED: list[tuple[Json, str]] = [
    ({"max_tokens": True}, "max_tokens: found True"),
    ({"messages": "hi"}, "messages: found 'hi'"),
    ({"messages": ["hi"]}, "messages[0]: found 'hi'"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]: found {'role': 'tool'"),
    (said("system", IMAGE), "messages[0].content[0]: found"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0]: found {'role': 'user', 'content': None}"),
    (said("user", DOCUMENT), "'document'"),
    (
        said("user", {"type": "image", "source": {"type": "file", "file_id": "f"}}),
        "messages[0].content[0].source: found",
    ),
    (said("user", {"type": "image"}), "messages[0].content[0].source: found None"),
    (said("user", result([DOCUMENT, IMAGE])), "messages[0].content[0].content[0]: "),
    (said("user", {"type": "tool_result"}), "tool_use_id: found None"),
    (said("assistant", {"type": "redacted_thinking", "data": "x"}), "'redacted_thinking'"),
    (
        said("assistant", {"type": "tool_use", "id": "t", "name": "n", "input": "x"}),
        "input: found 'x'; expected an object",
    ),
    ({"messages": [*HELLO["messages"], {"role": "assistant", "content": "The"}]}, "unfinished"),
    ({"system": [IMAGE]}, "system[0]: "),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]: found {'type': 'bash_20250124'"),
    ({"tools": [{"name": "x"}]}, "tools[0].input_schema: found None"),
    ({"tools": {}}, "tools: found {}"),
    ({"tool_choice": {"type": "sometimes"}}, "tool_choice: found {'type': 'sometimes'}"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name: found None"),
    ({"stop_sequences": [""]}, "stop_sequences: found ['']"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers: "),
    (
        said("assistant", {"type": "tool_use", "id": "t", "name": "n", "input": {"x": orjson.loads(nested(300))}}),
        "messages[0].content[0].input: nested too deeply",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_cannot_be_converted_is_refused_with_its_place(change: Json, message: str) -> None:
    with pytest.raises(Failure) as raised:
        messages_to_responses({**HELLO, **change})
    assert raised.value.kind is FailureKind.BAD_REQUEST and message in raised.value.problem.detail


DEEP = [f'{{"x":{nested(levels)}}}' for levels in (253, 300, 1000)]


@pytest.mark.parametrize("arguments", ["{not json", "[1]", "5", '{"x": NaN}', '{"x": 1, }', *DEEP])
def test_invalid_arguments_of_the_model_survive_the_way_to_the_client_and_back(arguments: str) -> None:
    call: Any = {"type": "function_call", "call_id": "t1", "name": "step", "arguments": arguments}
    message = response_to_message({"status": "completed", "output": [call]}, StopSequences(()))
    assert orjson.dumps(message)
    conversation = [*HELLO["messages"], {"role": "assistant", "content": message["content"]}, HELLO["messages"][0]]
    returned = messages_to_responses({**HELLO, "messages": conversation})["input"][1]
    assert message["content"][0]["input"] == {"invalid_arguments": arguments}
    assert returned == call


TEXT = st.text(alphabet="ab ", max_size=20)
SEQUENCES = st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), max_size=3)


def cut(pieces: list[str], sequences: list[str]) -> tuple[str, str | None]:
    stop = StopSequences(sequences)
    shown = "".join(stop.feed(piece) for piece in pieces)
    return (shown if stop.matched is not None else shown + stop.rest()), stop.matched


@given(TEXT, SEQUENCES)
def test_the_division_into_pieces_does_not_change_the_result(text: str, sequences: list[str]) -> None:
    assert cut([text], sequences) == cut(list(text), sequences)


@given(TEXT, SEQUENCES)
def test_the_text_before_the_sequence_contains_no_sequence(text: str, sequences: list[str]) -> None:
    shown, matched = cut([text], sequences)
    assert not any(sequence in shown for sequence in sequences)
    assert text.startswith(shown + (matched or "")) and (matched is not None or shown == text)


@pytest.mark.parametrize(
    ("text", "sequences", "expected"),
    [("aab", ["ab"], ("a", "ab")), ("abcd", ["bcd", "c"], ("ab", "c")), ("almost EN", ["END"], ("almost EN", None))],
)
def test_the_text_ends_at_the_sequence_that_is_complete_first(
    text: str, sequences: list[str], expected: tuple[str, str | None]
) -> None:
    assert cut([text], sequences) == expected


# A stream of Anthropic's events describes the same message as the complete response.

USAGE: Json = {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 3}}


def text(content: str) -> Json:
    part = {"type": "output_text", "text": content, "annotations": []}
    return {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


REASONING: Json = {"id": "r", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
REFUSAL: Json = {**text(""), "content": [{"type": "refusal", "refusal": "No."}]}
CALL: Json = {"id": "f", "type": "function_call", "call_id": "c", "name": "step", "arguments": '{"x":1}'}
ENDED: Json = {"status": "completed", "incomplete_details": None}
CUT: Json = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


def response(*output: Json, **more: Any) -> Json:
    return {"id": "resp_1", "model": "m", **ENDED, "output": list(output), "usage": USAGE, **more}


def data(stream: bytes) -> list[Json]:
    return [orjson.loads(data_of(block)) for block in stream.split(b"\n\n") if block]


def converted(complete: Json, stop: list[str]) -> list[Json]:
    events = MessageEvents(StopSequences(stop))
    sent: list[Json] = []
    for event in data(stream_events.whole(complete)):
        if events.ended:
            break
        sent += data(events.event(event))
    return sent


def accumulated(events: list[Json]) -> Json:
    message: Json = {}
    partial: dict[int, str] = {}
    opened: list[int] = []
    for event in events:
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            assert event["index"] == len(message["content"]) and not opened
            opened.append(event["index"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_stop":
            assert opened.pop() == event["index"]
        elif event["type"] == "content_block_delta":
            assert opened == [event["index"]]
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                partial[event["index"]] = partial.get(event["index"], "") + delta["partial_json"]
                block["input"] = orjson.loads(partial[event["index"]])
            else:
                key = delta["type"].removesuffix("_delta")
                block[key] += delta[key]
        elif event["type"] == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
    assert not opened
    return message


RESPONSES: list[tuple[Json, str]] = [
    (response(text("hello")), "end_turn"),
    (response(REASONING, text("hello"), CALL, {**CALL, "call_id": "d"}), "tool_use"),
    (response({**CALL, "arguments": "{no"}), "tool_use"),
    (response({**CALL, "arguments": ""}), "tool_use"),
    (response(text("hello"), **CUT), "max_tokens"),
    (response(REFUSAL), "refusal"),
    (response(text("hel"), stop_sequence="END"), "stop_sequence"),
    (response({**text("hi"), "prompt_token_ids": [1], "generation_token_ids": [2]}), "end_turn"),
]


@pytest.mark.parametrize(("complete", "reason"), RESPONSES)
def test_the_events_add_up_to_the_message(complete: Json, reason: str) -> None:
    message = response_to_message(complete, StopSequences(["END"]))
    assert accumulated(converted(complete, ["END"])) == message
    assert message["stop_reason"] == reason
    assert message["usage"] == {
        "input_tokens": 6,
        "output_tokens": 4,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 0,
    }


def test_a_text_that_the_engine_did_not_stop_is_cut_at_the_sequence() -> None:
    complete = response(text("one END two"), CALL)
    message = response_to_message(complete, StopSequences(["END"]))
    events = converted(complete, ["END"])
    assert accumulated(events)["content"] == message["content"]
    assert message["content"] == [{"type": "text", "text": "one ", "citations": None}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    assert [event["type"] for event in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("status", [429, 502, 500])
def test_an_error_event_ends_the_stream_with_the_error(status: int) -> None:
    events = MessageEvents(StopSequences(()))
    (sent,) = data(events.event({"type": "error", "message": "the engine is gone", "error": {"status": status}}))
    kind = {429: "rate_limit_error"}.get(status, "api_error")
    assert sent == {"type": "error", "error": {"type": kind, "message": "the engine is gone"}}
    assert events.ended


MALFORMED: list[Json] = [
    {},
    {"type": "response.created"},
    {"type": "response.content_part.added", "part": 5},
    {"type": "response.output_item.done", "item": {"type": "function_call"}},
    {"type": "response.completed", "response": {"output": 5}},
    {"type": "response.completed", "response": {"status": "completed", "output": []}},
]


@pytest.mark.parametrize("event", MALFORMED)
def test_a_malformed_event_is_a_failure_and_no_answer(event: Json) -> None:
    with pytest.raises(Failure):
        MessageEvents(StopSequences(())).event(event)
