"""Anthropic's official client and the model servers understand each other's requests and responses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from anthropic import APIStatusError, BadRequestError, InternalServerError, PermissionDeniedError, RateLimitError

from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.app import BuiltinModel
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.server.app import Server
from tests.support.anthropic_client import anthropic_and_engine, anthropic_client_of
from tests.support.openai_client import STEP
from tests.support.scripted_engine import Step, chunks, completion
from tests.support.waiting import deadline_s

HELLO: Any = [{"role": "user", "content": "hi"}]
GREEDY: Any = {"temperature": 0.0}
"""The client has no parameter for it any more."""
TOOLS: Any = [{"name": "step", "description": "Moves.", "input_schema": STEP}]
CALL: Json = {"id": "call_1", "type": "function", "function": {"name": "step", "arguments": '{"actions":["Up"]}'}}
CALLS = completion({"content": "I go up", "reasoning": "hm", "tool_calls": [CALL]}, "tool_calls")


def reported(text: str, **choice: Any) -> Json:
    answer = completion({"content": text})
    answer["choices"][0].update(choice)
    return answer


async def create(client: Any, **more: Any) -> Any:
    return await client.messages.create(**{"model": "any", "max_tokens": 64, "messages": HELLO, **more})


async def test_the_client_receives_thinking_text_and_tool_calls_and_can_send_them_back() -> None:
    async with anthropic_and_engine(CALLS, completion({"content": "done"})) as (client, engine):
        first = await create(client, tools=TOOLS, system="Be brief.", extra_body={"temperature": 0.5})
        result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "a wall"}
        conversation = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = await create(client, tools=TOOLS, messages=conversation)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    assert first.content[2].input == {"actions": ["Up"]}
    assert (first.stop_reason, first.usage.input_tokens, first.usage.output_tokens) == ("tool_use", 5, 2)
    assert (second.content[0].text, second.stop_reason) == ("done", "end_turn")
    sent, again = engine.requests
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (sent["max_tokens"], sent["temperature"], sent["tools"][0]["function"]["name"]) == (64, 0.5, "step")
    assert [message["role"] for message in again["messages"]] == ["user", "assistant", "tool"]
    turn, tool = again["messages"][1:]
    assert (turn["content"], turn["reasoning"], turn["tool_calls"]) == ("I go up", "hm", [CALL])
    assert tool == {"role": "tool", "tool_call_id": "call_1", "content": "a wall"}


async def test_the_clients_stream_ends_with_the_same_message() -> None:
    call = {**CALL, "index": 0}
    events = chunks({"reasoning": "hm"}, {"content": "I go"}, {"content": " up"}, {"tool_calls": [call]})
    async with anthropic_and_engine(Step(events=events)) as (client, _):
        texts = []
        stream: Any = client.messages.stream(model="any", max_tokens=64, messages=HELLO, tools=TOOLS)
        async with stream as running:
            async for text in running.text_stream:
                texts.append(text)
            message = await running.get_final_message()
    assert texts == ["I go", " up"]
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert (message.content[2].input, message.usage.output_tokens) == ({"actions": ["Up"]}, 2)


@pytest.mark.parametrize("field", ["stop_reason", "matched_stop"])
async def test_the_stop_sequence_that_the_engine_reports_is_the_reason(field: str) -> None:
    async with anthropic_and_engine(reported("one ", **{field: "END"})) as (client, engine):
        message = await create(client, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence, message.content[0].text) == ("stop_sequence", "END", "one ")
    assert engine.requests[0]["stop"] == ["END"]


async def test_a_stop_token_is_not_a_stop_sequence() -> None:
    async with anthropic_and_engine(reported("one", stop_reason=151645)) as (client, _):
        assert (await create(client, stop_sequences=["END"])).stop_reason == "end_turn"


async def test_a_stream_ends_at_a_stop_sequence_that_the_engine_ignored() -> None:
    events = chunks({"content": "one E"}, {"content": "ND two"})
    async with anthropic_and_engine(Step(events=events)) as (client, _):
        stream: Any = client.messages.stream(model="any", max_tokens=64, messages=HELLO, stop_sequences=["END"])
        async with stream as running:
            message = await running.get_final_message()
    assert (message.content[0].text, message.stop_reason, message.stop_sequence) == ("one ", "stop_sequence", "END")


async def test_the_openai_model_server_cuts_at_a_stop_sequence_because_its_endpoint_has_none() -> None:
    part = {"type": "output_text", "text": "one END two", "annotations": []}
    item = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    body = {"id": "resp_1", "object": "response", "status": "completed", "output": [item]}
    async with anthropic_and_engine(body, kind=OpenaiModel) as (client, engine):
        message = await create(client, stop_sequences=["END"])
    assert (message.content[0].text, message.stop_sequence) == ("one ", "END")
    assert "stop" not in engine.requests[0]


async def test_the_builtin_model_answers_streams_and_counts_the_same() -> None:
    async with anthropic_client_of(BuiltinModel) as client:
        message = await create(client, tools=TOOLS, extra_body=GREEDY)
        stream: Any = client.messages.stream(model="any", max_tokens=64, messages=HELLO, tools=TOOLS, extra_body=GREEDY)
        async with stream as running:
            streamed = await running.get_final_message()
        counted = await client.messages.count_tokens(model="any", messages=HELLO)
    assert [block.type for block in message.content] == [block.type for block in streamed.content]
    assert message.usage.input_tokens == streamed.usage.input_tokens == counted.input_tokens > 0


@pytest.mark.parametrize(
    ("status", "kind"), [(400, BadRequestError), (403, PermissionDeniedError), (429, RateLimitError)]
)
async def test_an_error_of_the_engine_raises_the_clients_exception_once(
    status: int, kind: type[APIStatusError]
) -> None:
    step = Step({"error": {"message": "not today"}}, status=status)
    async with anthropic_and_engine(step, max_attempts=1) as (client, engine):
        with pytest.raises(kind, match="not today") as raised:
            await create(client)
    body: Any = raised.value.body
    assert (body["type"], body["error"]["problem"]["server"]) == ("error", "policy_model")
    assert len(engine.requests) == 1


async def test_a_client_that_leaves_a_stream_disconnects_the_engine() -> None:
    hold = asyncio.Event()
    events = chunks({"content": "one"}, {"content": "two"})
    async with anthropic_and_engine(Step(events=(events[1], *events[1:]), hold=hold)) as (client, engine):
        stream: Any = await create(client, stream=True)
        async for event in stream:
            if event.type == "content_block_delta":
                break
        await stream.close()
        await asyncio.wait_for(engine.disconnected.wait(), deadline_s())


async def test_an_invalid_request_is_refused_before_it_reaches_the_engine() -> None:
    document = {"type": "document", "source": {"type": "url", "url": "https://example.com/cat.pdf"}}
    async with anthropic_and_engine() as (client, engine):
        with pytest.raises(BadRequestError, match="'document'"):
            await create(client, messages=[{"role": "user", "content": [document]}])
        with pytest.raises(BadRequestError, match="max_tokens: found None"):
            await client.post("/v1/messages", body={"messages": HELLO}, cast_to=object)
    assert engine.requests == []


async def test_the_engine_counts_the_tokens_of_a_prompt() -> None:
    async with anthropic_and_engine({"count": 42, "tokens": []}) as (client, engine):
        counted = await client.messages.count_tokens(model="any", messages=HELLO, system="Be brief.", tools=TOOLS)
    assert counted.input_tokens == 42
    assert engine.paths == ["/tokenize"]
    assert [message["role"] for message in engine.requests[0]["messages"]] == ["system", "user"]
    assert engine.requests[0]["tools"][0]["function"]["name"] == "step"


async def test_openais_endpoint_counts_the_tokens_of_a_prompt() -> None:
    answer = {"object": "response.input_tokens", "input_tokens": 17}
    async with anthropic_and_engine(answer, kind=OpenaiModel) as (client, engine):
        assert (await client.messages.count_tokens(model="any", messages=HELLO)).input_tokens == 17
    assert engine.paths == ["/v1/responses/input_tokens"]


@pytest.mark.parametrize("kind", [VllmModel, OpenaiModel])
async def test_an_engine_that_cannot_count_tokens_is_named_in_the_error(kind: type[Server]) -> None:
    async with anthropic_and_engine(Step({"detail": "Not Found"}, status=404), kind=kind) as (client, engine):
        with pytest.raises(InternalServerError, match="cannot count") as raised:
            await client.messages.count_tokens(model="any", messages=HELLO)
    assert raised.value.status_code == 501 and len(engine.requests) == 1


async def test_a_missing_run_token_is_an_error_in_the_clients_format() -> None:
    async with anthropic_client_of(BuiltinModel, token="run-token") as client:
        with pytest.raises(APIStatusError, match="run token") as raised:
            await create(client)
        assert raised.value.status_code == 401
        allowed = client.with_options(auth_token="run-token")
        assert (await create(allowed)).type == "message"
