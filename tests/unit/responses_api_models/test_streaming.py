"""Chunks in, events out, without a network: the streamed events add up to the response of the complete answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.conversion import Dialect, chat_to_response
from rollyard.responses_api_models.streaming import ResponseEvents
from rollyard.responses_api_models.upstream.sse import data_of, error_in, split_events
from rollyard.services.http.request import to_problem
from rollyard.services.responses.stream_events import whole
from tests.support.scripted_engine import chunks, completion

PLAIN = Dialect()
TAGS = Dialect(think_tags=True)
TEXT = st.text(max_size=12)
CALLS = st.lists(st.tuples(st.sampled_from(["step", "look"]), TEXT), max_size=3)


def parse_events(stream: bytes) -> list[Json]:
    pairs = [(orjson.loads(data_of(block)), block) for block in stream.split(b"\n\n") if block]
    assert all(block.startswith(b"event: %b\n" % data["type"].encode()) for data, block in pairs)
    return [data for data, _ in pairs]


def streamed(*deltas: Json, request: Json | None = None, dialect: Dialect = PLAIN, **last: Any) -> list[Json]:
    stream = ResponseEvents(request or {"input": "hi"}, dialect)
    sent = b"".join([stream.chunk(chunk) for chunk in chunks(*deltas, **last) if isinstance(chunk, dict)])
    parsed = parse_events(sent + stream.end())
    assert [event["sequence_number"] for event in parsed] == list(range(len(parsed)))
    return parsed


def kinds(all_events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in all_events]


def call(index: int, arguments: str = "", name: str | None = None, call_id: str | None = None) -> Json:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"tool_calls": [{"index": index, "function": function, **({"id": call_id} if call_id else {})}]}


def split_at(text: str, positions: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(position % (len(text) + 1) for position in positions)})
    return [text[start:end] for start, end in pairwise(bounds)]


@given(TEXT, TEXT, TEXT, CALLS, st.lists(st.integers(0, 99), max_size=6), st.sampled_from(["stop", "length"]))
def test_however_an_answer_is_split_its_stream_ends_with_the_response_of_the_whole(
    reasoning: str, content: str, refusal: str, calls: list[tuple[str, str]], positions: list[int], reason: str
) -> None:
    deltas = [{"reasoning": piece} for piece in split_at(reasoning, positions)]
    deltas += [{"content": piece} for piece in split_at(content, positions)]
    deltas += [{"refusal": piece} for piece in split_at(refusal, positions)]
    for index, (name, arguments) in enumerate(calls):
        deltas += [
            call(index, "", name, f"call_{index}"),
            *(call(index, piece) for piece in split_at(arguments, positions)),
        ]
    tool_calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    message = {"reasoning": reasoning, "content": content, "refusal": refusal, "tool_calls": tool_calls}
    events = streamed(*deltas, finish_reason=reason)
    assert events[-1]["response"] == chat_to_response(completion(message, reason), {"input": "hi"})
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert items == events[-1]["response"]["output"]
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == content


@given(st.sampled_from(["", "<think>", "\n<think>"]), TEXT, st.sampled_from(["", "</think>"]), TEXT, st.integers(0, 99))
def test_however_think_tags_are_split_the_result_is_that_of_the_complete_text(
    opening: str, reasoning: str, closing: str, rest: str, position: int
) -> None:
    text = f"{opening}{reasoning}{closing}{rest}"
    events = streamed(*({"content": piece} for piece in split_at(text, [position])), dialect=TAGS)
    assert events[-1]["response"] == chat_to_response(completion({"content": text}), {"input": "hi"}, TAGS)


def test_the_events_come_in_openais_order() -> None:
    events = streamed({"reasoning_content": "hm"}, {"content": "I "}, {"content": "go"}, call(0, "{}", "step", "a"))
    text = ["output_text.delta", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"]
    summary = ["reasoning_summary_part.added", "reasoning_summary_text.delta"]
    summary += ["reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"]
    arguments = ["function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds(events) == [
        *("created", "in_progress"),
        *("output_item.added", *summary),
        *("output_item.added", "content_part.added", *text),
        *("output_item.added", *arguments),
        "completed",
    ]


STREAMED_ITEMS: list[tuple[list[Json], list[tuple[str, str | None]]]] = [
    ([{"content": "a"}, call(0, "{}", "step", "x"), {"content": "b"}], [("a", None), ("step", "{}"), ("b", None)]),
    ([call(0, "{}", "step", "x"), call(0, "[]", "look", "y")], [("step", "{}"), ("look", "[]")]),  # index 0, other ids
    (
        [call(0, '{"a"', "step", "x"), call(1, '{"b"', "look", "y"), call(0, ":1}"), call(1, ":2}")],
        [("step", '{"a":1}'), ("look", '{"b":2}')],
    ),
    ([call(0, "", None, "x"), call(0, "{}", "step")], [("step", "{}")]),  # the name comes late
]


@pytest.mark.parametrize(("deltas", "expected"), STREAMED_ITEMS)
def test_each_text_and_each_call_becomes_an_item_of_its_own(
    deltas: list[Json], expected: list[tuple[str, str | None]]
) -> None:
    output = streamed(*deltas)[-1]["response"]["output"]
    assert [(i.get("name") or i["content"][0]["text"], i.get("arguments")) for i in output] == expected
    assert len({item["id"] for item in output}) == len(output)


WITH_LOGPROBS: Json = {"input": "hi", "include": ["message.output_text.logprobs"]}


def logprobs_of(*tokens: str) -> Json:
    return {"content": [{"token": token, "logprob": -1.0, "bytes": [], "top_logprobs": []} for token in tokens]}


@pytest.mark.parametrize("dialect", [PLAIN, TAGS])
def test_log_probabilities_of_a_streamed_text_equal_those_of_the_complete_text(dialect: Dialect) -> None:
    pieces = [("<think>", None), ("hm", None), ("</think>", None), ("I ", "I "), ("go", "go"), ("<end>", "")]
    if dialect is PLAIN:
        deltas = [{"content": text} if text is not None else {"reasoning": token} for token, text in pieces]
        message = {"reasoning": "<think>hm</think>", "content": "I go"}
    else:
        deltas = [{"content": token} for token, _ in pieces[:-1]] + [{"content": ""}]
        message = {"content": "<think>hm</think>I go"}
    stream = ResponseEvents(WITH_LOGPROBS, dialect)
    choices: list[Json] = [
        {"delta": delta, "logprobs": logprobs_of(token)} for delta, (token, _) in zip(deltas, pieces, strict=True)
    ]
    choices.append({"delta": {}, "finish_reason": "stop"})
    sent = b"".join([stream.chunk({**completion({}), "choices": [choice]}) for choice in choices])
    whole = completion(message)
    whole["choices"][0]["logprobs"] = logprobs_of(*[token for token, _ in pieces])
    expected = chat_to_response(whole, WITH_LOGPROBS, dialect)["output"]
    received = parse_events(sent + stream.end())
    assert received[-1]["response"]["output"] == expected
    in_deltas = [entry for event in received if "delta" in event for entry in event.get("logprobs", ())]
    assert in_deltas == expected[-1]["content"][0]["logprobs"]
    assert [entry["token"] for entry in expected[-1]["content"][0]["logprobs"]] == ["I ", "go", "<end>"]


def test_unknown_fields_are_kept_on_the_last_item() -> None:
    details = [{"reasoning_details": [{"text": "a"}]}, {"reasoning_details": [{"text": "b"}]}]
    output = streamed({"content": "x"}, *details)[-1]["response"]["output"]
    assert output[-1]["reasoning_details"] == [{"text": "a"}, {"text": "b"}]


def test_the_final_hook_receives_the_complete_response() -> None:
    stream = ResponseEvents({"input": "hi"}, PLAIN, lambda response: response.update(seen=len(response["output"])))
    for chunk in chunks({"content": "a"})[:-1]:
        stream.chunk(cast(Json, chunk))
    assert parse_events(stream.end())[-1]["response"]["seen"] == 1


def test_a_stream_with_an_unreadable_end_is_a_failure_that_can_still_be_sent() -> None:
    stream = ResponseEvents({"input": "hi"}, PLAIN)
    for chunk in chunks({"content": "a"})[:-1]:
        stream.chunk(cast(Json, chunk))
    stream.chunk({"choices": [], "usage": "much"})
    with pytest.raises(Failure, match="malformed chunk") as caught:
        stream.end()
    events = parse_events(stream.broken_off(to_problem(caught.value, "policy", "/v1/responses")))
    assert kinds(events) == ["failed", "error"]


def test_before_the_first_chunk_only_the_error_is_sent() -> None:
    problem = to_problem(Failure(FailureKind.CONNECTION_LOST, "gone"), "policy", "/v1/responses")
    assert kinds(parse_events(ResponseEvents({"input": "hi"}, PLAIN).broken_off(problem))) == ["error"]


def test_reasoning_is_streamed_after_its_opening_tag() -> None:
    events = streamed(
        {"content": "<thi"}, {"content": "nk>a"}, {"content": "b</th"}, {"content": "ink>c"}, dialect=TAGS
    )
    assert [(kind, e["delta"]) for kind, e in zip(kinds(events), events, strict=True) if "delta" in e] == [
        ("reasoning_summary_text.delta", "a"),
        ("reasoning_summary_text.delta", "b"),
        ("output_text.delta", "c"),
    ]


def test_a_complete_response_is_streamed_with_the_events_of_its_parts() -> None:
    odd = {"id": "x", "type": "message", "role": "assistant", "content": [{"type": "hologram"}]}
    thought = {"id": "a", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    refusal = {"id": "b", "type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    stream = whole({"id": "r", "output": [odd, thought, refusal], "status": "completed"})
    assert orjson.loads(stream.split(b"\n\n")[3].split(b"data: ")[1])["item"] == odd
    assert b"response.reasoning_text.delta" in stream and b"response.refusal.done" in stream


EVENTS = [b": ping\n\n", b'data: {"a": 1}\n\n', b"event: x\r\ndata: 1\r\ndata: 2\r\n\r\n", b"data: [DONE]\n\n"]


async def chunks_of(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def events(*chunks: bytes) -> list[bytes]:
    return [event async for event in split_events(chunks_of(*chunks))]


@given(st.lists(st.integers(0, sum(map(len, EVENTS))), max_size=8))
def test_events_are_the_same_wherever_the_body_is_cut(positions: list[int]) -> None:
    body = b"".join(EVENTS)
    bounds = sorted({0, len(body), *positions})
    parts = [body[start:end] for start, end in pairwise(bounds)]
    assert asyncio.run(events(*parts)) == EVENTS


async def test_the_last_event_of_a_stream_needs_no_blank_line() -> None:
    assert await events(EVENTS[1], b"data: [DONE]") == [EVENTS[1], EVENTS[3]]


def test_the_data_of_an_event_joins_all_its_data_lines() -> None:
    assert [data_of(event) for event in EVENTS] == [b"", b'{"a": 1}', b"1\n2", b"[DONE]"]


@pytest.mark.parametrize(
    "data", [b'{"choices": [], "error": null}', b'{"choices": [{"delta": {"content": "error"}}]}', b"an error"]
)
def test_the_word_error_is_not_an_error(data: bytes) -> None:
    assert error_in(b"data: %b\n\n" % data) is None
