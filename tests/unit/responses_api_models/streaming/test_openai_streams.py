"""Streams of real engines, read by OpenAI's official client: they arrive as they are made, and they end clean."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
import pytest
from openai import APIError, AsyncOpenAI, InternalServerError, OpenAI

from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.server.app import Server
from rollyard.services.types import Json
from tests.support.openai_client import (
    CHAT_TOOLS,
    HELLO,
    MODEL_SERVERS,
    TOOLS,
    Move,
    client_and_engine,
    run_sync_client,
)
from tests.support.scripted_engine import Step, chunks, response_events

NAMED: Json = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "step", "arguments": ""}}
MORE = [{"index": 0, "function": {"arguments": piece}} for piece in ('{"actions":', '["Up"]}')]
OTHER: Json = {"index": 1, "id": "call_2", "type": "function", "function": {"name": "step", "arguments": "{}"}}
CALLS = [{"tool_calls": [part]} for part in (NAMED, *MORE, OTHER)]
TURN = chunks({"reasoning": "hm"}, {"content": "I "}, {"content": "go"}, *CALLS, finish_reason="tool_calls")
HELLO_EVENTS = chunks({"content": "hel"}, {"content": "lo"})
MOVE = chunks({"content": '{"direction": "up", '}, {"content": '"steps": 2}'})


async def chat(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(model="any", messages=HELLO, stream=True, **more)


async def respond(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.responses.create(model="any", input="hi", stream=True, **more)


async def test_the_chat_accumulator_ends_with_the_whole_turn() -> None:
    async with (
        client_and_engine(Step(events=TURN)) as (client, _),
        client.chat.completions.stream(model="any", messages=HELLO, tools=CHAT_TOOLS) as stream,
    ):
        message = (await stream.get_final_completion()).choices[0].message
    assert message.content == "I go"
    assert [call.function.arguments for call in message.tool_calls or ()] == ['{"actions":["Up"]}', "{}"]


async def test_the_responses_accumulator_ends_with_the_whole_turn() -> None:
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


async def test_both_streams_are_read_by_the_synchronous_client() -> None:
    def use(client: OpenAI) -> tuple[str, str]:
        with client.responses.stream(model="any", input="hi") as events:
            said = events.get_final_response().output_text
        stream = client.chat.completions.create(model="any", messages=HELLO, stream=True)
        return said, "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    async with client_and_engine(Step(events=HELLO_EVENTS)) as (client, _):
        assert await run_sync_client(client, use) == ("hello", "hello")


@pytest.mark.parametrize("ask", [chat, respond])
async def test_what_the_engine_has_said_arrives_while_it_goes_on(ask: Any) -> None:
    hold = asyncio.Event()
    async with client_and_engine(Step(events=HELLO_EVENTS, hold=hold)) as (client, _):
        stream = await ask(client)
        first = await anext(stream)
        hold.set()
        rest = [event async for event in stream]
    assert first.model_dump().get("type", "chunk") in ("chunk", "response.created")
    assert len(rest) > 3


async def test_chunks_pass_through_as_they_are() -> None:
    odd = {**cast(Json, HELLO_EVENTS[1]), "odd": {"deep": [None]}}
    async with client_and_engine(Step(events=(HELLO_EVENTS[0], odd, *HELLO_EVENTS[2:]))) as (client, engine):
        seen = [chunk.to_dict(exclude_unset=True) async for chunk in await chat(client, extra_body={"top_k": 3})]
    assert seen == [HELLO_EVENTS[0], odd, *HELLO_EVENTS[2:-1]]
    assert (engine.requests[0]["top_k"], engine.requests[0]["model"]) == (3, "engine-model")


async def test_the_usage_of_a_chat_stream_is_asked_of_the_engine_where_the_client_asks_for_it() -> None:
    async with client_and_engine(Step(events=HELLO_EVENTS)) as (client, engine):
        *_, last = [chunk async for chunk in await chat(client, stream_options={"include_usage": True})]
    assert engine.requests[0]["stream_options"] == {"include_usage": True}
    assert last.usage.total_tokens == 7


async def test_the_events_of_an_endpoint_with_the_responses_api_pass_through_as_they_are() -> None:
    events = response_events("hello")
    async with client_and_engine(Step(events=events), kind=OpenaiModel) as (client, engine):
        seen = [event.to_dict(exclude_unset=True) async for event in await respond(client)]
    assert seen == [orjson.loads(event.partition(b"data: ")[2]) for event in events]
    assert engine.paths == ["/v1/responses"]


async def test_structured_output_is_parsed_from_both_streams() -> None:
    async with client_and_engine(Step(events=MOVE)) as (client, _):
        async with client.responses.stream(model="any", input="hi", text_format=Move) as events:
            response = await events.get_final_response()
        async with client.chat.completions.stream(model="any", messages=HELLO, response_format=Move) as stream:
            completion = await stream.get_final_completion()
    assert response.output_parsed == completion.choices[0].message.parsed == Move(direction="up", steps=2)


@pytest.mark.parametrize("ask", [chat, respond])
async def test_headers_of_the_engine_and_the_policys_version_come_before_the_stream(ask: Any) -> None:
    step = Step(events=HELLO_EVENTS, headers={"x-request-id": "req-9", "set-cookie": "sticky=8"})
    async with client_and_engine(step, policy_version="12") as (client, _):
        stream = await ask(client)
        headers = stream.response.headers
        await stream.close()
    assert (headers["x-rollyard-policy-version"], headers["x-request-id"]) == ("12", "req-9")
    assert headers["set-cookie"] == "sticky=8"


@pytest.mark.parametrize("kind", MODEL_SERVERS)
@pytest.mark.parametrize("ask", [chat, respond])
async def test_a_client_that_hangs_up_makes_the_engine_stop(ask: Any, kind: type[Server]) -> None:
    events = response_events("hello") if kind is OpenaiModel and ask is respond else HELLO_EVENTS
    async with client_and_engine(Step(events=events, hold=asyncio.Event()), kind=kind) as (client, engine):
        stream = await ask(client)
        await anext(stream)
        await stream.close()
        async with asyncio.timeout(60):
            await engine.disconnected.wait()


@pytest.mark.parametrize("ask", [chat, respond])
async def test_a_client_that_hangs_up_before_the_first_event_makes_the_engine_stop(ask: Any) -> None:
    async with client_and_engine(Step(events=HELLO_EVENTS, delay_s=60)) as (client, engine):
        asking = asyncio.create_task(ask(client))
        async with asyncio.timeout(60):
            await engine.reached.wait()
            asking.cancel()
            await engine.disconnected.wait()


TORN = b'data: {"id": "chatcmpl-7", "choices": [{"ind'


@pytest.mark.parametrize("kind", MODEL_SERVERS)
@pytest.mark.parametrize("ask", [chat, respond])
async def test_an_engine_that_dies_in_the_middle_is_an_error_and_never_a_whole_answer(
    ask: Any, kind: type[Server]
) -> None:
    begun = response_events("hello")[:-1] if kind is OpenaiModel and ask is respond else HELLO_EVENTS[:2]
    deaths = [Step(events=(*begun, *tail), cut=cut) for tail in ((), (TORN,)) for cut in (True, False)]
    async with client_and_engine(*deaths, kind=kind) as (client, _):
        for _ in deaths:
            seen = []
            with pytest.raises(APIError) as caught:
                async for event in await ask(client):
                    seen.append(event.model_dump(warnings=False))
            assert caught.value.code == "connection_lost"
            assert cast(Json, caught.value.body)["server"] == "policy_model"
            if ask is respond:
                assert seen[-1]["type"] == "response.failed"
                assert [event["sequence_number"] for event in seen] == list(range(len(seen)))


async def test_the_responses_accumulator_raises_where_the_engine_dies() -> None:
    async with client_and_engine(Step(events=HELLO_EVENTS[:2], cut=True)) as (client, _):
        with pytest.raises(APIError, match="connection"):
            async with client.responses.stream(model="any", input="hi") as stream:
                await stream.get_final_response()


@pytest.mark.parametrize("ask", [chat, respond])
async def test_an_engine_that_falls_silent_is_an_error_after_its_time(ask: Any) -> None:
    step = Step(events=HELLO_EVENTS, hold=asyncio.Event())
    async with client_and_engine(step, request_timeout_s=1.0) as (client, _):
        with pytest.raises(APIError) as caught:
            [event async for event in await ask(client)]
    assert caught.value.code == "timeout"


@pytest.mark.parametrize("ask", [chat, respond])
async def test_an_error_within_the_engines_stream_is_raised(ask: Any) -> None:
    error: Json = {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}
    async with client_and_engine(Step(events=(*HELLO_EVENTS[:2], error, b"data: [DONE]\n\n"))) as (client, _):
        with pytest.raises(APIError, match="EngineCore died"):
            [event async for event in await ask(client)]


@pytest.mark.parametrize("ask", [chat, respond])
async def test_a_stream_that_begins_with_an_error_is_an_error_answer(ask: Any) -> None:
    error: Json = {"error": {"message": "maximum context length is 10", "code": 400}}
    async with client_and_engine(Step(events=(error, b"data: [DONE]\n\n"))) as (client, _):
        with pytest.raises(APIError) as caught:
            await ask(client)
    assert (cast(Any, caught.value).status_code, caught.value.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    "step",
    [Step(status=500), Step(b"<html>\n\nbusy</html>"), Step(), Step(events=(), cut=True)],
    ids=["500", "html", "no stream", "cut"],
)
@pytest.mark.parametrize("ask", [chat, respond])
async def test_a_stream_is_asked_for_again_until_it_begins(ask: Any, step: Step) -> None:
    async with client_and_engine(step, Step(events=HELLO_EVENTS)) as (client, engine):
        assert [event async for event in await ask(client)]
    assert len(engine.requests) == 2


async def test_an_endpoint_that_does_not_stream_is_an_error_that_says_so() -> None:
    step = Step(headers={"content-type": "application/json"})
    async with client_and_engine(step, kind=VllmModel, max_attempts=1) as (client, _):
        with pytest.raises(InternalServerError, match="without an event stream") as caught:
            await respond(client)
    assert caught.value.code == "malformed_answer"
