"""OpenAI's official client in front of our model servers in front of a real engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, cast

import orjson
import pytest
from openai import AsyncOpenAI, BadRequestError
from pydantic import BaseModel

from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.vllm_model.app import VllmModel
from tests.external.vllm.calls import CALL, MOVES, TOOL, asking
from tests.external.vllm.engine import GENERATED, LONGEST, RUNNING, Engine
from tests.support.openai_client import client_of_server
from tests.support.waiting import eventually

TOOLS: Any = [{"type": "function", "strict": False, **cast(Any, TOOL)["function"]}]
Ask = Callable[..., Awaitable[Any]]


class Move(BaseModel):
    """What structured output is parsed into; short, since random weights write all that the schema allows."""

    direction: Literal["up", "down"]
    push: bool


def front(engine: Engine, kind: Any = VllmModel, **settings: Any) -> Any:
    return client_of_server(kind, base_url=f"{engine.url}/v1", **{"model": "tiny", **settings})


async def chat(client: AsyncOpenAI, **fields: Any) -> Any:
    request = asking(**{"seed": 3, **fields})
    constraint = {"structured_outputs": request.pop("structured_outputs")}
    return await client.chat.completions.create(**request, extra_body=constraint)


async def respond(client: AsyncOpenAI, **fields: Any) -> Any:
    request = asking()
    body: Any = {"input": request["messages"], "tools": TOOLS, "max_output_tokens": 200, "temperature": 0.8}
    extra = {"structured_outputs": {"regex": CALL}, "seed": 3}
    return await client.responses.create(model="any", **{**body, **fields}, extra_body=extra)


def moves(arguments: str) -> list[str]:
    parsed: list[str] = orjson.loads(arguments)["actions"]
    assert 1 <= len(parsed) <= 4 and set(parsed) <= set(MOVES)
    return parsed


async def test_both_apis_give_the_same_call_with_and_without_streaming(engine: Engine) -> None:
    async with front(engine) as client:
        whole = (await chat(client)).choices[0].message.tool_calls[0].function
        pieces: list[Any] = []
        async for chunk in await chat(client, stream=True):
            pieces += [part for choice in chunk.choices for part in choice.delta.tool_calls or ()]
        item = (await respond(client)).output[-1]
        events = [event async for event in await respond(client, stream=True)]
    assert whole.name == item.name == pieces[0].function.name == "step"
    deltas = [cast(Any, event).delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 1
    arguments = [whole.arguments, "".join(p.function.arguments or "" for p in pieces), item.arguments, "".join(deltas)]
    assert len({tuple(moves(text)) for text in arguments}) == 1
    final = cast(Any, events[-1]).response
    assert (final.status, final.output[-1].arguments) == ("completed", "".join(deltas))


async def test_structured_output_is_parsed_by_both_apis_with_and_without_streaming(engine: Engine) -> None:
    messages: Any = [{"role": "user", "content": "Your move?"}]
    async with front(engine) as client:
        response = await client.responses.parse(
            model="any", input="Your move?", text_format=Move, max_output_tokens=400
        )
        completion = await client.chat.completions.parse(
            model="any", messages=messages, response_format=Move, max_tokens=400
        )
        async with client.responses.stream(
            model="any", input="Your move?", text_format=Move, max_output_tokens=400
        ) as events:
            streamed = await events.get_final_response()
    parsed = [response.output_parsed, completion.choices[0].message.parsed, streamed.output_parsed]
    assert all(isinstance(move, Move) for move in parsed)


@pytest.mark.parametrize("ask", [chat, respond])
async def test_a_stream_ends_with_the_recorded_tokens(engine: Engine, ask: Ask) -> None:
    async with front(engine, return_token_id_information=True, logprobs_mode="processed_logprobs") as client:
        events = [event.to_dict() async for event in await ask(client, stream=True)]
    sent = orjson.dumps(events)
    assert b'"generation_token_ids":[' in sent and b'"generation_log_probs":[' in sent


def _has_stopped(engine: Engine, before: float) -> bool:
    """Return True if tokens were counted since `before` and no more arrive. The gauge alone lags behind the tokens."""
    # That nothing more arrives can only be seen over time; an unaborted request generates for several seconds.
    counted = engine.gauge(GENERATED)
    time.sleep(0.5)
    return engine.gauge(GENERATED) == counted > before and engine.gauge(RUNNING) == 0


@pytest.mark.parametrize("kind", [VllmModel, OpenaiModel])
@pytest.mark.parametrize("ask", [chat, respond])
async def test_a_client_that_disconnects_in_mid_stream_aborts_the_request(engine: Engine, ask: Ask, kind: Any) -> None:
    endless: Any = {"ignore_eos": True, "min_tokens": LONGEST - 400}
    messages: Any = [{"role": "user", "content": "hi"}]
    await asyncio.to_thread(eventually, "the engine is idle", lambda: engine.gauge(RUNNING) == 0)
    before = engine.gauge(GENERATED)
    async with front(engine, kind) as client:
        if ask is chat:
            made = client.chat.completions.create(model="any", messages=messages, stream=True, extra_body=endless)
        else:
            made = client.responses.create(model="any", input="hi", stream=True, extra_body=endless)
        stream = cast(Any, await made)
        for _ in range(5):
            await anext(stream)
        await stream.close()
        await asyncio.to_thread(eventually, "the engine stops generating", lambda: _has_stopped(engine, before))
    assert engine.gauge(GENERATED) - before < LONGEST - 400


@pytest.mark.parametrize("kind", [VllmModel, OpenaiModel])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_beyond_the_context_has_openais_code(engine: Engine, kind: Any, stream: bool) -> None:
    async with front(engine, kind) as client:
        with pytest.raises(BadRequestError, match="maximum context length") as raised:
            await client.responses.create(model="any", input=" the" * LONGEST, stream=cast(Any, stream))
    assert raised.value.code == "context_length_exceeded"


async def test_vllms_own_responses_stream_passes_through_openai_model(engine: Engine) -> None:
    async with (
        front(engine, OpenaiModel) as client,
        client.responses.stream(model="any", input="hi", max_output_tokens=8) as stream,
    ):
        events = [event async for event in stream]
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
