"""A stream of Anthropic's events describes the same message as the complete response."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rollyard.records.errors import Failure
from rollyard.records.types import Json
from rollyard.responses_api_models.anthropic_api import MessageEvents, StopSequences, response_to_message
from rollyard.responses_api_models.upstream.sse import data_of
from rollyard.services.responses import stream_events

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
    """Build the message as Anthropic's clients do."""
    message: Json = {}
    partial: dict[int, str] = {}
    for event in events:
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                partial[event["index"]] = partial.get(event["index"], "") + delta["partial_json"]
                block["input"] = orjson.loads(partial[event["index"]])
            else:
                key = delta["type"].removesuffix("_delta")
                block[key] += delta[key]
        elif event["type"] == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
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


def test_every_block_is_started_before_its_deltas_and_stopped_once() -> None:
    opened: list[int] = []
    for event in converted(response(REASONING, text("a"), CALL), []):
        if event["type"] == "content_block_start":
            opened.append(event["index"])
        elif event["type"].startswith("content_block"):
            assert opened == [event["index"]]
        if event["type"] == "content_block_stop":
            opened.clear()
    assert not opened


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
