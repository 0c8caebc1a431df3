"""OpenAI's official client and the model servers understand each other's requests and responses."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import openai
import orjson
import pytest
from openai import APIError, APIStatusError, AsyncOpenAI, AuthenticationError, NotFoundError, pydantic_function_tool
from pydantic import BaseModel

from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.app import BuiltinModel
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.upstream.settings import EndpointSettings
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
    client_of_server,
    run_sync_client,
)
from tests.support.scripted_engine import (
    DONE,
    Step,
    chunks,
    completion,
    engine,
    model_server,
    post_json,
    response_events,
)
from tests.support.waiting import deadline_s

CALL = {"id": "call_1", "type": "function", "function": {"name": "step", "arguments": '{"actions":["Up"]}'}}
CALLS = completion(
    {"content": "I go up", "reasoning": "hm", "tool_calls": [CALL, {**CALL, "id": "call_2"}]}, "tool_calls"
)
MOVE = completion({"content": '{"direction": "up", "steps": 2}'})


class step(BaseModel):  # noqa: N801 - a tool's name
    """Play moves."""

    actions: list[str]


@pytest.mark.parametrize("kind", MODEL_SERVERS)
async def test_both_official_clients_receive_the_complete_chat_completion(kind: type[Server]) -> None:
    async with client_and_engine(CALLS, kind=kind) as (client, _):
        one = await client.chat.completions.create(model="any", messages=HELLO, tools=CHAT_TOOLS)
        two = await run_sync_client(
            client, lambda c: c.chat.completions.create(model="any", messages=HELLO, tools=CHAT_TOOLS)
        )
    assert one.to_dict() == two.to_dict() == CALLS


async def test_the_items_of_a_response_can_be_sent_back_by_the_client() -> None:
    async with client_and_engine(CALLS, completion({"content": "done"})) as (client, engine):
        first = await client.responses.parse(model="any", input="hi", tools=[pydantic_function_tool(step)])
        call = cast(Any, first.output[2])
        assert call.parsed_arguments == step(actions=["Up"])
        answers: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
            for item in first.output
            if item.type == "function_call"
        ]
        await client.responses.create(model="any", input=[*HELLO, *cast(Any, first.output), *answers])
    messages = engine.requests[1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert (messages[1]["content"], messages[1]["reasoning"]) == ("I go up", "hm")
    assert messages[1]["tool_calls"] == CALLS["choices"][0]["message"]["tool_calls"]


async def test_structured_output_is_requested_from_the_engine_and_parsed_in_both_apis() -> None:
    async with client_and_engine(MOVE) as (client, engine):
        response = await client.responses.parse(model="any", input="hi", text_format=Move)
        chat = await client.chat.completions.parse(model="any", messages=HELLO, response_format=Move)
    assert response.output_parsed == chat.choices[0].message.parsed == Move(direction="up", steps=2)
    formats = [request["response_format"] for request in engine.requests]
    assert formats[0]["json_schema"] == {"name": "Move", "strict": True, "schema": formats[1]["json_schema"]["schema"]}
    assert formats[0]["type"] == formats[1]["type"] == "json_schema"


@pytest.mark.parametrize("name", ["engine-model", "Qwen/Qwen3-4B"])
async def test_the_model_is_listed_and_found_by_its_name(name: str) -> None:
    async with client_and_engine(model=name) as (client, _):
        assert [model.id async for model in client.models.list()] == [name]
        assert (await client.models.retrieve(name)).id == name
        with pytest.raises(NotFoundError, match="has no model 'gpt-9'") as caught:
            await client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


async def test_the_built_in_model_works_with_both_apis_streamed_or_not() -> None:
    board = "You are the player. Push all boxes onto the targets.\n######\n#_PXO#\n######"
    messages: Any = [{"role": "user", "content": board}]
    async with client_of_server(BuiltinModel, temperature=0.0) as client:
        response = await client.responses.create(model="any", input=board, tools=TOOLS)
        chat = await client.chat.completions.create(model="any", messages=messages, tools=CHAT_TOOLS)
        async with client.responses.stream(model="any", input=board, tools=TOOLS) as events:
            streamed = await events.get_final_response()
        usage: Any = {"include_usage": True}
        async with client.chat.completions.stream(
            model="any", messages=messages, tools=CHAT_TOOLS, stream_options=usage
        ) as chunks:
            chunked = await chunks.get_final_completion()
    calls = [cast(Any, response.output[0]), cast(Any, streamed.output[0])]
    calls += [cast(Any, answer.choices[0].message.tool_calls)[0].function for answer in (chat, chunked)]
    assert [call.name for call in calls] == ["step"] * 4
    assert len({call.arguments for call in calls}) == 1
    assert chunked.usage == chat.usage


# OpenAI's official client reads streams of engines: events arrive as they are generated and every stream ends.

CALL_START: Json = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "step", "arguments": ""}}
CALL_ARGUMENTS = [{"index": 0, "function": {"arguments": piece}} for piece in ('{"actions":', '["Up"]}')]
SECOND_CALL: Json = {"index": 1, "id": "call_2", "type": "function", "function": {"name": "step", "arguments": "{}"}}
STREAMED_CALLS = [{"tool_calls": [part]} for part in (CALL_START, *CALL_ARGUMENTS, SECOND_CALL)]
TURN = chunks({"reasoning": "hm"}, {"content": "I "}, {"content": "go"}, *STREAMED_CALLS, finish_reason="tool_calls")
HELLO_EVENTS = chunks({"content": "hel"}, {"content": "lo"})


async def chat(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(**{"model": "any", "messages": HELLO, "stream": True, **more})


async def respond(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.responses.create(**{"model": "any", "input": "hi", "stream": True, **more})


async def test_both_accumulators_end_with_the_complete_turn() -> None:
    async with client_and_engine(Step(events=TURN)) as (client, engine):
        async with client.chat.completions.stream(model="any", messages=HELLO, tools=CHAT_TOOLS) as chunks_:
            message = (await chunks_.get_final_completion()).choices[0].message
        async with client.responses.stream(model="any", input="hi", tools=TOOLS) as stream:
            final = await stream.get_final_response()
    arguments = ['{"actions":["Up"]}', "{}"]
    assert message.content == final.output_text == "I go"
    assert [call.function.arguments for call in message.tool_calls or ()] == arguments
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    assert [cast(Any, item).arguments for item in final.output[2:]] == arguments
    assert final.usage and final.usage.total_tokens == 7
    assert engine.requests[0]["stream"] is True


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


async def test_events_of_a_responses_endpoint_are_forwarded_unchanged() -> None:
    events = response_events("hello")
    async with client_and_engine(Step(events=events), kind=OpenaiModel) as (client, engine):
        received = [event.to_dict(exclude_unset=True) async for event in await respond(client)]
    assert received == [orjson.loads(event.partition(b"data: ")[2]) for event in events]
    assert engine.paths == ["/v1/responses"]


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


async def whole(client: AsyncOpenAI) -> Any:
    return await client.responses.create(model="any", input="hi")


@pytest.mark.parametrize("call", [chat, respond, whole])
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


@pytest.mark.parametrize("call", [chat, respond])
async def test_an_engine_that_stops_sending_is_a_timeout_error(call: Any) -> None:
    step = Step(events=HELLO_EVENTS, hold=asyncio.Event())
    async with client_and_engine(step, request_timeout_s=1.0) as (client, _):
        with pytest.raises(APIError) as caught:
            [event async for event in await call(client)]
    assert caught.value.code == "timeout"


CONTEXT_ERROR: Json = {"error": {"message": "maximum context length is 10", "code": 400}}


@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        (Step(events=(CONTEXT_ERROR, DONE)), 400, "context_length_exceeded"),
        (Step(headers={"content-type": "application/json"}), 502, "malformed_answer"),
    ],
)
@pytest.mark.parametrize("call", [chat, respond])
async def test_a_stream_that_does_not_start_is_an_error_response(call: Any, step: Step, status: int, code: str) -> None:
    async with client_and_engine(step, max_attempts=1) as (client, _):
        with pytest.raises(APIError) as caught:
            await call(client)
    assert (cast(Any, caught.value).status_code, caught.value.code) == (status, code)


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


RESPONSE = response_events("hello")
TAILS: list[tuple[tuple[Json | bytes, ...], str]] = [
    ((b'event: error\ndata: {"message": "boom"}\n\n', DONE), "boom"),
    ((b"event: error\ndata: boom\n\n", DONE), "boom"),
    (({"object": "error", "message": "boom"}, DONE), "boom"),
    (({"error": {"message": "boom"}}, DONE), "boom"),
    ((b"data: {broken\n\n", DONE), "not JSON"),
    ((b'data: {"type": "response.odd", "x": "\xff"}\n\n', DONE), "UTF-8"),
    ((b"data: [1]\n\n", DONE), "JSON list"),
    ((DONE,), "ended before its response was complete"),
]
UNFINISHED: Json = {"choices": [{"index": 1, "delta": {}, "finish_reason": None}]}
CHAT_TAILS: list[tuple[tuple[Json | bytes, ...], str]] = [
    (({"choices": [{"index": 0, "error": {"message": "boom"}}]}, *HELLO_EVENTS[3:]), "boom"),
    (chunks({"content": "half"}, finish_reason="error"), "finish_reason 'error'"),
    ((UNFINISHED, DONE), "ended before"),
]


@pytest.mark.parametrize(
    ("kind", "call", "tail", "message"),
    [
        *((VllmModel, call, *one) for call in (chat, respond) for one in [*TAILS, *CHAT_TAILS]),
        *((OpenaiModel, respond, *one) for one in TAILS),
        (VllmModel, chat, (UNFINISHED, *HELLO_EVENTS[2:]), "ended before"),
    ],
)
async def test_a_broken_stream_never_looks_like_a_complete_answer(
    kind: type[Server], call: Any, tail: tuple[Json | bytes, ...], message: str
) -> None:
    events = (*(RESPONSE[:-1] if kind is OpenaiModel else HELLO_EVENTS[:2]), *tail)
    async with client_and_engine(Step(events=events), kind=kind, max_attempts=1) as (client, _):
        with pytest.raises(APIError, match=message):
            [event async for event in await call(client)]


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


ANSWER: Json = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [
        {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "failed"}]}
    ],
}


async def test_a_request_is_forwarded_with_the_configured_model_and_the_bytes_of_the_answer_are_returned() -> None:
    request = {"input": [{"type": "item_reference", "id": "x"}], "model": "other", "odd": {"a": None}}
    body = b'{"id":  "resp_1", "output": [{"type": "web_search_call"}], "status": "completed", "odd": 1.50}'
    async with engine(Step(body)) as fake, model_server(OpenaiModel, base_url=fake.url) as server:
        answer, _ = await post_json(server, "/v1/responses", request)
    assert (fake.paths, fake.requests) == (["/v1/responses"], [{**request, "model": "engine-model"}])
    assert answer.body == body


async def test_a_rows_extra_body_is_merged_and_yields_to_the_request() -> None:
    request = {"input": "hi", "top_p": 0.5, "metadata": {"extra_body": '{"seed": 3, "top_p": 1}', "keep": "x"}}
    extra = {"store": False, "seed": 1}
    async with engine(ANSWER) as fake, model_server(OpenaiModel, base_url=fake.url, extra_body=extra) as server:
        await post_json(server, "/v1/responses", request)
    expected = {"seed": 3, "top_p": 0.5, "store": False, "metadata": {"keep": "x"}}
    assert {key: fake.requests[0][key] for key in expected} == expected


def test_nemo_gyms_setting_names_are_accepted() -> None:
    names = {"openai_base_url": "http://h/v1", "openai_api_key": "k", "openai_model": "m"}
    settings = EndpointSettings(**names)
    assert (settings.base_url, settings.model) == ("http://h/v1", "m")


async def error_of(client: AsyncOpenAI, call: Any = respond, **more: Any) -> APIStatusError:
    with pytest.raises(APIStatusError) as caught:
        await call(client, **more)
    return caught.value


def refusal(status: int, **headers: str) -> Step:
    return Step({"error": {"message": "that is why", "type": "x", "param": None, "code": "its_code"}}, status, headers)


async def test_each_refusal_raises_its_own_exception_in_both_apis_streamed_or_not() -> None:
    refusals: dict[int, type[APIStatusError]] = {400: openai.BadRequestError, 401: openai.AuthenticationError}
    refusals |= {403: openai.PermissionDeniedError, 404: openai.NotFoundError, 429: openai.RateLimitError}
    for status, exception in {**refusals, 500: openai.InternalServerError, 503: openai.InternalServerError}.items():
        async with client_and_engine(refusal(status), max_attempts=1) as (client, _):
            errors = [await error_of(client, call, stream=one) for call in (chat, respond) for one in (False, True)]
        expected = (exception, status if status < 500 else 502, "its_code")
        assert [(type(error), error.status_code, error.code) for error in errors] == [expected] * 4
        assert all("that is why" in error.message for error in errors)


async def test_an_unknown_path_is_not_found() -> None:
    async with client_and_engine() as (client, _):
        with pytest.raises(openai.NotFoundError, match=r"/v1/embeddings .*/v1/responses"):
            await client.embeddings.create(model="any", input="hi")


async def test_a_client_needs_the_run_token() -> None:
    async with client_of_server(BuiltinModel, token="the run token") as client:
        error = await error_of(client)
        answer = await respond(client.with_options(api_key="the run token"), stream=False)
    assert (type(error), error.code) == (AuthenticationError, "unauthorized")
    assert answer.status == "completed"


async def test_the_exception_has_the_endpoints_request_id_and_retry_after() -> None:
    step = refusal(429, **{"x-request-id": "req-9", "retry-after": "7"})
    async with client_and_engine(step, max_attempts=1) as (client, _):
        error = await error_of(client)
    assert (error.request_id, error.response.headers["retry-after"]) == ("req-9", "7")


@pytest.mark.parametrize("step", [refusal(429), refusal(409), Step(b"<html>")], ids=["429", "409", "html"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_does_not_retry_what_the_server_has_already_retried(step: Step, stream: bool) -> None:
    async with client_and_engine(step, retries=2, max_attempts=2) as (client, engine):
        await error_of(client, stream=stream)
    assert len(engine.requests) == 2
