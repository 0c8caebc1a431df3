"""Streams made from complete answers, read by the official client over a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import cast

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, InternalServerError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.base import ModelServer
from rollyard.responses_api_models.conversion import chat_to_response
from rollyard.responses_api_models.upstream.sse import chat_chunks, data_of, error_in, is_event, split_events
from rollyard.services.http.request import RawRequest
from rollyard.services.responses.stream_events import whole
from rollyard.services.server.settings import ServerSettings
from tests.support.openai_client import client_of_server
from tests.support.scripted_engine import completion

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


async def test_the_official_client_reads_a_streamed_response() -> None:
    async with client_for(ANSWER) as client:
        events = [event async for event in await client.responses.create(model="any", input="hi", stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    message = ["output_item.added", "content_part.added", "output_text.delta"]
    message += ["output_text.done", "content_part.done", "output_item.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds[-15:] == [*message, *call, *call, "completed"]


async def test_the_stream_of_an_incomplete_response_ends_as_incomplete() -> None:
    async with client_for(completion({"content": "half"}, "length")) as client:
        events = [event async for event in await client.responses.create(model="any", input="hi", stream=True)]
    assert events[-1].type == "response.incomplete"


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


async def test_the_official_clients_accumulator_ends_with_the_complete_completion() -> None:
    async with (
        client_for(ANSWER) as client,
        client.chat.completions.stream(model="any", messages=[{"role": "user", "content": "hi"}]) as stream,
    ):
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == "I go up"
    assert [call.function.arguments for call in message.tool_calls or ()] == ['{"actions":["Up"]}'] * 2


async def test_a_failure_is_an_error_response_even_when_a_stream_was_requested() -> None:
    async with client_for(None) as client:
        with pytest.raises(InternalServerError) as caught:
            await client.responses.create(model="any", input="hi", stream=True)
    assert "answered 500: boom" in cast(Json, caught.value.body)["detail"]


async def test_a_stream_is_sent_as_server_sent_events() -> None:
    async with client_for(ANSWER) as client, httpx.AsyncClient(trust_env=False) as plain:
        url = f"{client.base_url}chat/completions"
        answer = await plain.post(url, json={"messages": [{"role": "user", "content": "x"}], "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")


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
