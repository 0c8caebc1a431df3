"""Chunks in, events out, without a network: the streamed events add up to the response of the complete answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, InternalServerError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.base import ModelServer
from rollyard.responses_api_models.conversion import Dialect, chat_to_response
from rollyard.responses_api_models.streaming import ResponseEvents
from rollyard.responses_api_models.upstream.sse import chat_chunks, data_of, error_in, is_event, split_events
from rollyard.services.http.request import RawRequest, to_problem
from rollyard.services.responses.stream_events import whole
from rollyard.services.server.settings import ServerSettings
from tests.support.openai_client import client_of_server
from tests.support.scripted_engine import chunks, completion

PLAIN = Dialect()
TAGS = Dialect(think_tags=True)
TEXT = st.text(max_size=12)
CALLS = st.lists(st.tuples(st.sampled_from(["step", "look"]), TEXT), max_size=3)


def parse_events(stream: bytes) -> list[Json]:
    """The events, checked for numbering and for names that match their data."""
    pairs = [(orjson.loads(data_of(block)), block) for block in stream.split(b"\n\n") if block]
    assert all(block.startswith(b"event: %b\n" % data["type"].encode()) for data, block in pairs)
    return [data for data, _ in pairs]


def streamed(*deltas: Json, request: Json | None = None, dialect: Dialect = PLAIN, **last: Any) -> list[Json]:
    """The events of a stream of these deltas."""
    stream = ResponseEvents(request or {"input": "hi"}, dialect)
    sent = b"".join([stream.chunk(chunk) for chunk in chunks(*deltas, **last) if isinstance(chunk, dict)])
    parsed = parse_events(sent + stream.end())
    assert [event["sequence_number"] for event in parsed] == list(range(len(parsed)))
    return parsed


def kinds(all_events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in all_events]


def call(index: int, arguments: str = "", name: str | None = None, call_id: str | None = None) -> Json:
    """The delta of a tool call."""
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
    events = streamed({"reasoning": "hm"}, {"content": "I "}, {"content": "go"}, call(0, "{}", "step", "a"))
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


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_under_both_field_names(field: str) -> None:
    events = streamed({field: "hm"})
    assert events[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "hm"}]


def test_a_text_after_a_tool_call_is_a_separate_item() -> None:
    output = streamed({"content": "a"}, call(0, "{}", "step", "x"), {"content": "b"})[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "message"]
    assert len({item["id"] for item in output}) == 3


def test_calls_that_all_have_index_0_are_distinguished_by_their_ids() -> None:
    output = streamed(call(0, "{}", "step", "x"), call(0, "[]", "look", "y"))[-1]["response"]["output"]
    assert [(item["name"], item["arguments"]) for item in output] == [("step", "{}"), ("look", "[]")]


def test_interleaved_deltas_of_parallel_calls_are_assigned_to_their_calls() -> None:
    events = streamed(
        call(0, '{"a"', "step", "x"),
        call(1, '{"b"', "look", "y"),
        call(0, ":1}"),
        call(1, ":2}"),
    )
    output = events[-1]["response"]["output"]
    calls = [(item["call_id"], item["name"], item["arguments"]) for item in output]
    assert calls == [("x", "step", '{"a":1}'), ("y", "look", '{"b":2}')]
    deltas = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert [event["output_index"] for event in deltas] == [0, 1, 0, 1]


def test_a_call_may_receive_its_name_in_a_later_delta() -> None:
    events = streamed(call(0, "", None, "x"), call(0, "{}", "step"))
    assert events[-1]["response"]["output"][0]["name"] == "step"


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
    for delta, (token, _) in zip(deltas, pieces, strict=True):
        stream.chunk({**completion({}), "choices": [{"index": 0, "delta": delta, "logprobs": logprobs_of(token)}]})
    stream.chunk({**completion({}), "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    whole = completion(message)
    whole["choices"][0]["logprobs"] = logprobs_of(*[token for token, _ in pieces])
    expected = chat_to_response(whole, WITH_LOGPROBS, dialect)["output"]
    assert parse_events(stream.end())[-1]["response"]["output"] == expected
    assert [entry["token"] for entry in expected[-1]["content"][0]["logprobs"]] == ["I ", "go", "<end>"]


def test_the_log_probabilities_of_the_deltas_add_up_to_those_of_the_complete_text() -> None:
    stream = ResponseEvents(WITH_LOGPROBS, PLAIN)
    streamed_bytes = b""
    for text, token in (("I ", "I "), ("", ""), ("go", "go"), ("", "<end>")):
        choice = {"index": 0, "delta": {"content": text}, "logprobs": logprobs_of(token)}
        streamed_bytes += stream.chunk({**completion({}), "choices": [choice]})
    streamed_bytes += stream.chunk({**completion({}), "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    received = parse_events(streamed_bytes + stream.end())
    deltas = [entry for event in received if "delta" in event for entry in event["logprobs"]]
    assert deltas == received[-1]["response"]["output"][0]["content"][0]["logprobs"] and len(deltas) == 4


def test_unknown_fields_are_kept_on_the_last_item() -> None:
    details = [{"reasoning_details": [{"text": "a"}]}, {"reasoning_details": [{"text": "b"}]}]
    output = streamed({"content": "x"}, *details)[-1]["response"]["output"]
    assert output[-1]["reasoning_details"] == [{"text": "a"}, {"text": "b"}]


def test_the_final_hook_receives_the_complete_response() -> None:
    stream = ResponseEvents({"input": "hi"}, PLAIN, lambda response: response.update(seen=len(response["output"])))
    for chunk in chunks({"content": "a"}):
        if isinstance(chunk, dict):
            stream.chunk(chunk)
    assert parse_events(stream.end())[-1]["response"]["seen"] == 1


@pytest.mark.parametrize(
    ("chunk", "kind"),
    [
        ({"error": {"message": "EngineCore died", "code": 500}}, FailureKind.UPSTREAM_ERROR),
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}, FailureKind.UPSTREAM_ERROR),
        ({"choices": [{"index": 0, "delta": {"content": 7}}]}, FailureKind.MALFORMED_ANSWER),
        ({"choices": "none"}, FailureKind.MALFORMED_ANSWER),
    ],
)
def test_an_invalid_chunk_is_a_failure(chunk: Json, kind: FailureKind) -> None:
    with pytest.raises(Failure) as caught:
        ResponseEvents({"input": "hi"}, PLAIN).chunk(chunk)
    assert caught.value.kind is kind


def test_a_stream_with_an_unreadable_end_is_a_failure_that_can_still_be_sent() -> None:
    stream = ResponseEvents({"input": "hi"}, PLAIN)
    for chunk in chunks({"content": "a"}):
        if isinstance(chunk, dict):
            stream.chunk(chunk)
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


# Streams made from complete answers, read by the official client over a real server.

CALL = {"id": "call_1", "type": "function", "function": {"name": "step", "arguments": '{"actions":["Up"]}'}}
ANSWER = completion({"content": "I go up", "reasoning_content": "hm", "tool_calls": [CALL, {**CALL, "id": "call_2"}]})


class WithoutStreaming(ModelServer[ServerSettings]):
    """A minimal model server without streaming code: it returns complete answers or fails."""

    answer: Json | None = None

    async def responses(self, request: Json, call: RawRequest) -> Json:
        """Return the same answer, or fail."""
        if self.answer is None:
            raise Failure(FailureKind.UPSTREAM_ERROR, "the engine answered 500: boom")
        return chat_to_response(self.answer, request)

    def models(self) -> list[str]:
        """Two models, one with a slash in its name."""
        return ["engine-model", "Qwen/Qwen3-4B"]


@contextlib.asynccontextmanager
async def client_for(answer: Json | None) -> AsyncIterator[AsyncOpenAI]:
    """The official client of a server with this answer."""

    class Answering(WithoutStreaming):
        pass

    Answering.answer = answer
    async with client_of_server(Answering) as client:
        yield client


async def test_the_official_client_reads_a_streamed_completion_with_usage() -> None:
    async with client_for(ANSWER) as client:
        stream = await client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "I go up"
    assert chunks[-1].usage
    assert chunks[-1].usage.total_tokens == 7


async def test_a_failure_is_an_error_response_even_when_a_stream_was_requested() -> None:
    async with client_for(None) as client:
        with pytest.raises(InternalServerError) as caught:
            await client.responses.create(model="any", input="hi", stream=True)
    assert "answered 500: boom" in cast(Json, caught.value.body)["detail"]


def test_a_part_without_a_streaming_event_still_arrives_with_its_item() -> None:
    item = {"id": "x", "type": "message", "role": "assistant", "content": [{"type": "hologram"}]}
    events = whole({"id": "r", "output": [item], "status": "completed"}).split(b"\n\n")
    assert orjson.loads(events[3].split(b"data: ")[1])["item"] == item


def test_refusals_and_reasoning_texts_have_their_own_events() -> None:
    output = [
        {"id": "a", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"id": "b", "type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    stream = whole({"id": "r", "output": output, "status": "completed"})
    assert b"response.reasoning_text.delta" in stream
    assert b"response.refusal.done" in stream


def test_every_choice_is_streamed() -> None:
    choices = [{"index": n, "message": {"role": "assistant", "content": str(n)}} for n in (0, 1)]
    stream = chat_chunks({"id": "c", "choices": choices})
    assert stream.count(b'"role":"assistant"') == 2


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


async def test_a_body_that_ends_inside_an_event_is_a_lost_connection() -> None:
    with pytest.raises(Failure, match=r'middle of an event: data: \{"a"'):
        await events(EVENTS[0], b'data: {"a"')


async def test_the_last_event_of_a_stream_needs_no_blank_line() -> None:
    assert await events(EVENTS[1], b"data: [DONE]") == [EVENTS[1], EVENTS[3]]


def test_the_data_of_an_event_joins_all_its_data_lines() -> None:
    assert [data_of(event) for event in EVENTS] == [b"", b'{"a": 1}', b"1\n2", b"[DONE]"]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'data: {"error": {"message": "no"}}\n\n', "no"),
        (b'data: {"error": "no"}\n\n', "no"),
        (b'event: error\ndata: {"type": "error", "message": "no"}\n\n', "no"),
        (b'data: {"choices": [], "error": null}\n\n', None),
        (b'data: {"choices": [{"delta": {"content": "error"}}]}\n\n', None),
        (b"data: an error\n\n", None),
        (b": error\n\n", None),
    ],
)
def test_an_error_is_found_in_the_formats_of_both_apis(event: bytes, message: str | None) -> None:
    assert (error_in(event) or {}).get("message") == message


@pytest.mark.parametrize("answer", [b"<html>\n\n", b'{"id": 1}\n\n', b""])
def test_a_body_that_is_not_an_event_is_detected(answer: bytes) -> None:
    assert not is_event(answer)
    assert all(is_event(event) for event in EVENTS)
