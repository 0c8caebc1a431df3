"""The synthesised streams, read by the official client over a real server."""

from __future__ import annotations

from typing import Any, cast

import httpx
import orjson
import pytest
from openai import AsyncOpenAI, InternalServerError

from responses_api_models.streaming import chat_chunks, response_events
from responses_api_models.vllm_model.app import VllmModel
from services.types import Json
from tests.responses_api_models.scripted_engine import Step, completion, engine, listening, model_server

CALL = {"id": "call_1", "type": "function", "function": {"name": "step", "arguments": '{"actions":["Up"]}'}}
ANSWER = completion({"content": "I go up", "reasoning_content": "hm", "tool_calls": [CALL, {**CALL, "id": "call_2"}]})
TOOLS: Any = [{"type": "function", "name": "step", "parameters": {"type": "object"}, "strict": False}]


class Client:
    """The official client in front of a vllm_model in front of a scripted engine, all over real sockets."""

    def __init__(self, *steps: Step | Json) -> None:
        self.steps = steps

    async def __aenter__(self) -> AsyncOpenAI:
        self.engine = engine(*self.steps)
        fake = await self.engine.__aenter__()
        self.model = model_server(VllmModel, base_url=fake.url, max_attempts=1)
        self.listening = listening(await self.model.__aenter__())
        url = await self.listening.__aenter__()
        self.client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        return self.client

    async def __aexit__(self, *error: Any) -> None:
        await self.client.close()
        for opened in (self.listening, self.model, self.engine):
            await opened.__aexit__(None, None, None)


async def test_the_official_client_reads_a_response() -> None:
    async with Client(ANSWER) as client:
        response = await client.responses.create(model="any", input="hi", tools=TOOLS)
    assert response.output_text == "I go up"
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]


async def test_the_official_client_reads_a_streamed_response() -> None:
    async with Client(ANSWER) as client:
        events = [event async for event in await client.responses.create(model="any", input="hi", stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    message = ["output_item.added", "content_part.added", "output_text.delta"]
    message += ["output_text.done", "content_part.done", "output_item.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds[-15:] == [*message, *call, *call, "completed"]


async def test_the_official_clients_accumulator_ends_with_the_whole_response() -> None:
    async with (
        Client(ANSWER) as client,
        client.responses.stream(model="any", input="hi", tools=TOOLS) as stream,
    ):
        final = await stream.get_final_response()
    assert final.output_text == "I go up"
    assert cast(Any, final.output[-1]).arguments == '{"actions":["Up"]}'


async def test_an_incomplete_response_ends_its_stream_as_incomplete() -> None:
    async with Client(completion({"content": "half"}, "length")) as client:
        events = [event async for event in await client.responses.create(model="any", input="hi", stream=True)]
    assert events[-1].type == "response.incomplete"


async def test_the_official_client_reads_a_completion() -> None:
    async with Client(ANSWER) as client:
        answer = await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == "I go up"
    assert [cast(Any, call).id for call in answer.choices[0].message.tool_calls or ()] == ["call_1", "call_2"]


async def test_the_official_client_reads_a_streamed_completion_with_usage() -> None:
    async with Client(ANSWER) as client:
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


async def test_the_official_clients_accumulator_ends_with_the_whole_completion() -> None:
    async with (
        Client(ANSWER) as client,
        client.chat.completions.stream(model="any", messages=[{"role": "user", "content": "hi"}]) as stream,
    ):
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == "I go up"
    assert [call.function.arguments for call in message.tool_calls or ()] == ['{"actions":["Up"]}'] * 2


async def test_a_failure_is_an_error_answer_even_where_a_stream_was_asked_for() -> None:
    async with Client(Step(b"boom", 500)) as client:
        with pytest.raises(InternalServerError) as caught:
            await client.responses.create(model="any", input="hi", stream=True)
    assert "answered 500: boom" in cast(Json, caught.value.body)["detail"]


async def test_the_models_are_listed() -> None:
    async with Client(ANSWER) as client:
        assert [model.id async for model in client.models.list()] == ["engine-model"]


async def test_a_stream_is_sent_as_server_sent_events() -> None:
    async with Client(ANSWER) as client, httpx.AsyncClient(trust_env=False) as plain:
        url = f"{client.base_url}chat/completions"
        answer = await plain.post(url, json={"messages": [{"role": "user", "content": "x"}], "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")


def test_parts_without_a_stream_form_still_arrive_with_their_item() -> None:
    item = {"id": "x", "type": "message", "role": "assistant", "content": [{"type": "hologram"}]}
    events = response_events({"id": "r", "output": [item], "status": "completed"}).split(b"\n\n")
    assert orjson.loads(events[3].split(b"data: ")[1])["item"] == item


def test_refusals_and_reasoning_texts_have_events_of_their_own() -> None:
    output = [
        {"id": "a", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"id": "b", "type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    stream = response_events({"id": "r", "output": output, "status": "completed"})
    assert b"response.reasoning_text.delta" in stream
    assert b"response.refusal.done" in stream


def test_every_choice_is_streamed() -> None:
    choices = [{"index": n, "message": {"role": "assistant", "content": str(n)}} for n in (0, 1)]
    stream = chat_chunks({"id": "c", "choices": choices})
    assert stream.count(b'"role":"assistant"') == 2
