"""OpenAI's official client reads streams of engines: events arrive as they are generated and every stream ends."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import anthropic
import orjson
import pytest
from openai import APIError, AsyncOpenAI, InternalServerError, OpenAI

from rollyard.records.types import Json
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.server.app import Server
from tests.support.anthropic_client import anthropic_and_engine
from tests.support.openai_client import (
    CHAT_TOOLS,
    HELLO,
    MODEL_SERVERS,
    TOOLS,
    Move,
    client_and_engine,
    run_sync_client,
)
from tests.support.scripted_engine import DONE, Step, chunks, response_events
from tests.support.waiting import deadline_s

CALL_START: Json = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "step", "arguments": ""}}
CALL_ARGUMENTS = [{"index": 0, "function": {"arguments": piece}} for piece in ('{"actions":', '["Up"]}')]
SECOND_CALL: Json = {"index": 1, "id": "call_2", "type": "function", "function": {"name": "step", "arguments": "{}"}}
CALLS = [{"tool_calls": [part]} for part in (CALL_START, *CALL_ARGUMENTS, SECOND_CALL)]
TURN = chunks({"reasoning": "hm"}, {"content": "I "}, {"content": "go"}, *CALLS, finish_reason="tool_calls")
HELLO_EVENTS = chunks({"content": "hel"}, {"content": "lo"})
MOVE = chunks({"content": '{"direction": "up", '}, {"content": '"steps": 2}'})


async def chat(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(model="any", messages=HELLO, stream=True, **more)


async def respond(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.responses.create(model="any", input="hi", stream=True, **more)


async def test_the_chat_accumulator_ends_with_the_complete_turn() -> None:
    async with (
        client_and_engine(Step(events=TURN)) as (client, _),
        client.chat.completions.stream(model="any", messages=HELLO, tools=CHAT_TOOLS) as stream,
    ):
        message = (await stream.get_final_completion()).choices[0].message
    assert message.content == "I go"
    assert [call.function.arguments for call in message.tool_calls or ()] == ['{"actions":["Up"]}', "{}"]


async def test_the_responses_accumulator_ends_with_the_complete_turn() -> None:
    async with (
        client_and_engine(Step(events=TURN)) as (client, engine),
        client.responses.stream(model="any", input="hi", tools=TOOLS) as stream,
    ):
        final = await stream.get_final_response()
    assert final.output_text == "I go"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    assert [cast(Any, item).arguments for item in final.output[2:]] == ['{"actions":["Up"]}', "{}"]
    assert final.usage and final.usage.total_tokens == 7
    assert engine.requests[0]["stream"] is True


async def test_the_synchronous_client_reads_both_streams() -> None:
    def use(client: OpenAI) -> tuple[str, str]:
        with client.responses.stream(model="any", input="hi") as events:
            text = events.get_final_response().output_text
        stream = client.chat.completions.create(model="any", messages=HELLO, stream=True)
        return text, "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    async with client_and_engine(Step(events=HELLO_EVENTS)) as (client, _):
        assert await run_sync_client(client, use) == ("hello", "hello")


@pytest.mark.parametrize("call", [chat, respond])
async def test_events_arrive_while_the_engine_is_still_generating(call: Any) -> None:
    hold = asyncio.Event()
    async with client_and_engine(Step(events=HELLO_EVENTS, hold=hold)) as (client, _):
        stream = await call(client)
        first = await anext(stream)
        hold.set()
        rest = [event async for event in stream]
    assert first.model_dump().get("type", "chunk") in ("chunk", "response.created")
    assert len(rest) > 3


async def test_chunks_are_forwarded_unchanged() -> None:
    odd = {**cast(Json, HELLO_EVENTS[1]), "odd": {"deep": [None]}}
    async with client_and_engine(Step(events=(HELLO_EVENTS[0], odd, *HELLO_EVENTS[2:]))) as (client, engine):
        received = [chunk.to_dict(exclude_unset=True) async for chunk in await chat(client, extra_body={"top_k": 3})]
    assert received == [HELLO_EVENTS[0], odd, *HELLO_EVENTS[2:-1]]
    assert (engine.requests[0]["top_k"], engine.requests[0]["model"]) == (3, "engine-model")


async def test_the_usage_of_a_chat_stream_is_requested_from_the_engine_if_the_client_requests_it() -> None:
    async with client_and_engine(Step(events=HELLO_EVENTS)) as (client, engine):
        *_, last = [chunk async for chunk in await chat(client, stream_options={"include_usage": True})]
    assert engine.requests[0]["stream_options"] == {"include_usage": True}
    assert last.usage.total_tokens == 7


async def test_events_of_a_responses_endpoint_are_forwarded_unchanged() -> None:
    events = response_events("hello")
    async with client_and_engine(Step(events=events), kind=OpenaiModel) as (client, engine):
        received = [event.to_dict(exclude_unset=True) async for event in await respond(client)]
    assert received == [orjson.loads(event.partition(b"data: ")[2]) for event in events]
    assert engine.paths == ["/v1/responses"]


async def test_structured_output_is_parsed_from_both_streams() -> None:
    async with client_and_engine(Step(events=MOVE)) as (client, _):
        async with client.responses.stream(model="any", input="hi", text_format=Move) as events:
            response = await events.get_final_response()
        async with client.chat.completions.stream(model="any", messages=HELLO, response_format=Move) as stream:
            completion = await stream.get_final_completion()
    assert response.output_parsed == completion.choices[0].message.parsed == Move(direction="up", steps=2)


@pytest.mark.parametrize("call", [chat, respond])
async def test_headers_of_the_engine_and_the_policy_version_precede_the_stream(call: Any) -> None:
    step = Step(events=HELLO_EVENTS, headers={"x-request-id": "req-9", "set-cookie": "sticky=8"})
    async with client_and_engine(step, policy_version="12") as (client, _):
        stream = await call(client)
        headers = stream.response.headers
        await stream.close()
    assert (headers["x-rollyard-policy-version"], headers["x-request-id"]) == ("12", "req-9")
    assert headers["set-cookie"] == "sticky=8"


@pytest.mark.parametrize("kind", MODEL_SERVERS)
@pytest.mark.parametrize("call", [chat, respond])
async def test_a_client_that_disconnects_stops_the_engine(call: Any, kind: type[Server]) -> None:
    events = response_events("hello") if kind is OpenaiModel and call is respond else HELLO_EVENTS
    async with client_and_engine(Step(events=events, hold=asyncio.Event()), kind=kind) as (client, engine):
        stream = await call(client)
        await anext(stream)
        await stream.close()
        async with asyncio.timeout(deadline_s()):
            await engine.disconnected.wait()


@pytest.mark.parametrize("call", [chat, respond])
async def test_a_client_that_disconnects_before_the_first_event_stops_the_engine(call: Any) -> None:
    async with client_and_engine(Step(events=HELLO_EVENTS, delay_s=deadline_s())) as (client, engine):
        calling = asyncio.create_task(call(client))
        async with asyncio.timeout(deadline_s()):
            await engine.reached.wait()
            calling.cancel()
            await engine.disconnected.wait()


PARTIAL_EVENT = b'data: {"id": "chatcmpl-7", "choices": [{"ind'


@pytest.mark.parametrize("kind", MODEL_SERVERS)
@pytest.mark.parametrize("call", [chat, respond])
async def test_an_engine_that_dies_during_a_stream_is_an_error_and_never_a_complete_answer(
    call: Any, kind: type[Server]
) -> None:
    first_events = response_events("hello")[:-1] if kind is OpenaiModel and call is respond else HELLO_EVENTS[:2]
    deaths = [Step(events=(*first_events, *tail), cut=cut) for tail in ((), (PARTIAL_EVENT,)) for cut in (True, False)]
    async with client_and_engine(*deaths, kind=kind) as (client, _):
        for _ in deaths:
            received = []
            with pytest.raises(APIError) as caught:
                async for event in await call(client):
                    received.append(event.model_dump(warnings=False))
            assert caught.value.code == "connection_lost"
            assert cast(Json, caught.value.body)["server"] == "policy_model"
            if call is respond:
                assert received[-1]["type"] == "response.failed"
                assert [event["sequence_number"] for event in received] == list(range(len(received)))


async def test_the_responses_accumulator_raises_when_the_engine_dies() -> None:
    async with client_and_engine(Step(events=HELLO_EVENTS[:2], cut=True)) as (client, _):
        with pytest.raises(APIError, match="connection"):
            async with client.responses.stream(model="any", input="hi") as stream:
                await stream.get_final_response()


@pytest.mark.parametrize("call", [chat, respond])
async def test_an_engine_that_stops_sending_is_a_timeout_error(call: Any) -> None:
    step = Step(events=HELLO_EVENTS, hold=asyncio.Event())
    async with client_and_engine(step, request_timeout_s=1.0) as (client, _):
        with pytest.raises(APIError) as caught:
            [event async for event in await call(client)]
    assert caught.value.code == "timeout"


@pytest.mark.parametrize("call", [chat, respond])
async def test_an_error_inside_the_engines_stream_is_raised(call: Any) -> None:
    error: Json = {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}
    async with client_and_engine(Step(events=(*HELLO_EVENTS[:2], error, b"data: [DONE]\n\n"))) as (client, _):
        with pytest.raises(APIError, match="EngineCore died"):
            [event async for event in await call(client)]


@pytest.mark.parametrize("call", [chat, respond])
async def test_a_stream_that_starts_with_an_error_is_an_error_response(call: Any) -> None:
    error: Json = {"error": {"message": "maximum context length is 10", "code": 400}}
    async with client_and_engine(Step(events=(error, b"data: [DONE]\n\n"))) as (client, _):
        with pytest.raises(APIError) as caught:
            await call(client)
    assert (cast(Any, caught.value).status_code, caught.value.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    "step",
    [Step(status=500), Step(b"<html>\n\nbusy</html>"), Step(), Step(events=(), cut=True)],
    ids=["500", "html", "no stream", "cut"],
)
@pytest.mark.parametrize("call", [chat, respond])
async def test_a_stream_is_requested_again_until_it_starts(call: Any, step: Step) -> None:
    async with client_and_engine(step, Step(events=HELLO_EVENTS)) as (client, engine):
        assert [event async for event in await call(client)]
    assert len(engine.requests) == 2


async def test_an_endpoint_that_does_not_stream_is_an_error_that_says_so() -> None:
    step = Step(headers={"content-type": "application/json"})
    async with client_and_engine(step, kind=VllmModel, max_attempts=1) as (client, _):
        with pytest.raises(InternalServerError, match="event stream") as caught:
            await respond(client)
    assert caught.value.code == "malformed_answer"


ABORTED = chunks({"content": "half"}, finish_reason="error")
NO_FINISH = (*HELLO_EVENTS[:3], DONE)
BROKEN: dict[str, tuple[tuple[Json | bytes, ...], str]] = {
    "event: error": ((*HELLO_EVENTS[:2], b'event: error\ndata: {"message": "boom"}\n\n', *HELLO_EVENTS[3:]), "boom"),
    "event: error without JSON": ((*HELLO_EVENTS[:2], b"event: error\ndata: boom\n\n", DONE), "boom"),
    "object error": ((*HELLO_EVENTS[:2], {"object": "error", "message": "boom"}, *HELLO_EVENTS[3:]), "boom"),
    "type error": ((*HELLO_EVENTS[:2], {"type": "error", "message": "boom"}, *HELLO_EVENTS[3:]), "boom"),
    "error in a choice": (
        (*HELLO_EVENTS[:2], {"choices": [{"index": 0, "error": {"message": "boom"}}]}, *HELLO_EVENTS[3:]),
        "boom",
    ),
    "DONE without a finish_reason": (NO_FINISH, "ended before its response was complete"),
    "finish_reason error": (ABORTED, "finish_reason 'error'"),
    "broken JSON": ((*HELLO_EVENTS[:2], b'data: {"choices": [{]\n\n', *HELLO_EVENTS[3:]), "not JSON"),
    "a list": ((*HELLO_EVENTS[:2], b"data: [1]\n\n", *HELLO_EVENTS[3:]), "JSON list"),
    "invalid UTF-8": ((*HELLO_EVENTS[:2], b'data: {"choices": [], "x": "\xff"}\n\n', *HELLO_EVENTS[3:]), "UTF-8"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("call", [chat, respond])
async def test_a_broken_stream_never_looks_like_a_complete_answer(call: Any, case: str) -> None:
    events, message = BROKEN[case]
    async with client_and_engine(Step(events=events), max_attempts=1) as (client, _):
        with pytest.raises(APIError, match=message):
            [event async for event in await call(client)]


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_stream_is_an_error_for_anthropics_client(case: str) -> None:
    events, message = BROKEN[case]
    request: Any = {"model": "any", "max_tokens": 9, "messages": HELLO}
    async with anthropic_and_engine(Step(events=events), max_attempts=1) as (client, _):
        with pytest.raises(anthropic.APIStatusError, match=message):
            async with client.messages.stream(**request) as stream:
                await stream.get_final_message()


RESPONSE = response_events("hello")


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ((b'event: error\ndata: {"message": "boom"}\n\n',), "boom"),
        ((b'data: {"object": "error", "message": "boom"}\n\n',), "boom"),
        ((b'data: {"error": {"message": "boom"}}\n\n',), "boom"),
        ((b"data: {broken\n\n",), "not JSON"),
        ((b'data: {"type": "response.odd", "x": "\xff"}\n\n',), "UTF-8"),
        ((DONE,), "ended before its response was complete"),
    ],
    ids=["event: error", "object error", "error", "broken JSON", "invalid UTF-8", "DONE"],
)
async def test_a_broken_stream_of_a_responses_endpoint_is_an_error(tail: tuple[bytes, ...], message: str) -> None:
    events = (*RESPONSE[:-1], *tail)
    async with client_and_engine(Step(events=events), kind=OpenaiModel) as (client, _):
        with pytest.raises(APIError, match=message):
            [event async for event in await respond(client)]


@pytest.mark.parametrize("cut", [False, True], ids=["closed", "cut"])
@pytest.mark.parametrize("kind", MODEL_SERVERS)
async def test_a_finished_text_without_done_is_complete(kind: type[Server], cut: bool) -> None:
    async with client_and_engine(Step(events=HELLO_EVENTS[:-1], cut=cut), kind=kind) as (client, _):
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in await chat(client) if chunk.choices])
    events = RESPONSE if kind is OpenaiModel else HELLO_EVENTS[:-1]
    async with client_and_engine(Step(events=events, cut=cut), kind=kind) as (client, _):
        *_, last = [event async for event in await respond(client)]
    async with anthropic_and_engine(Step(events=events, cut=cut), kind=kind) as (claude, _):
        request: Any = {"model": "any", "max_tokens": 9, "messages": HELLO}
        async with claude.messages.stream(**request) as stream:
            message = await stream.get_final_text()
    assert (text, last.response.output_text, message) == ("hello", "hello", "hello")


async def test_a_stream_with_an_unfinished_choice_is_not_complete() -> None:
    other: Json = {"choices": [{"index": 1, "delta": {"content": "half"}, "finish_reason": None}]}
    async with client_and_engine(Step(events=(*HELLO_EVENTS[:2], other, *HELLO_EVENTS[2:]))) as (client, _):
        with pytest.raises(APIError, match="ended before"):
            [chunk async for chunk in await chat(client, n=2)]
