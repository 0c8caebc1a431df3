"""OpenAI's official client and the model servers understand each other's requests and responses."""

from __future__ import annotations

from typing import Any, cast

import pytest
from openai import NotFoundError, pydantic_function_tool
from pydantic import BaseModel

from rollyard.responses_api_models.builtin_model.app import BuiltinModel
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.server.app import Server
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
from tests.support.scripted_engine import Step, completion

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


async def test_both_official_clients_receive_the_complete_response() -> None:
    async with client_and_engine(CALLS) as (client, _):
        one = await client.responses.create(model="any", input="hi", tools=TOOLS)
        two = await run_sync_client(client, lambda c: c.responses.create(model="any", input="hi", tools=TOOLS))
    assert one.output_text == two.output_text == "I go up"
    assert [item.type for item in one.output] == ["reasoning", "message", "function_call", "function_call"]
    assert one.usage and two.usage and one.usage.total_tokens == two.usage.total_tokens == 7


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


async def test_a_chat_message_can_be_sent_back_by_the_client() -> None:
    async with client_and_engine(CALLS, completion({"content": "done"})) as (client, engine):
        first = await client.chat.completions.create(model="any", messages=HELLO, tools=CHAT_TOOLS)
        answers: Any = [{"role": "tool", "tool_call_id": id, "content": "ok"} for id in ("call_1", "call_2")]
        await client.chat.completions.create(
            model="any", messages=[*HELLO, cast(Any, first.choices[0].message), *answers]
        )
    assert engine.requests[1]["messages"][1]["tool_calls"] == CALLS["choices"][0]["message"]["tool_calls"]


async def test_structured_output_is_requested_from_the_engine_and_parsed_in_both_apis() -> None:
    async with client_and_engine(MOVE) as (client, engine):
        response = await client.responses.parse(model="any", input="hi", text_format=Move)
        chat = await client.chat.completions.parse(model="any", messages=HELLO, response_format=Move)
    assert response.output_parsed == chat.choices[0].message.parsed == Move(direction="up", steps=2)
    formats = [request["response_format"] for request in engine.requests]
    assert formats[0]["json_schema"] == {"name": "Move", "strict": True, "schema": formats[1]["json_schema"]["schema"]}
    assert formats[0]["type"] == formats[1]["type"] == "json_schema"


async def test_strict_tools_are_parsed_by_the_chat_client() -> None:
    async with client_and_engine(CALLS) as (client, engine):
        chat = await client.chat.completions.parse(model="any", messages=HELLO, tools=[pydantic_function_tool(step)])
    calls = chat.choices[0].message.tool_calls
    assert calls and calls[0].function.parsed_arguments == step(actions=["Up"])
    assert engine.requests[0]["tools"][0]["function"]["strict"] is True


@pytest.mark.parametrize("kind", MODEL_SERVERS)
async def test_unknown_fields_headers_cookies_and_the_query_reach_the_engine(kind: type[Server]) -> None:
    answer = (
        CALLS
        if kind is VllmModel
        else {
            "id": "resp_1",
            "object": "response",
            "status": "completed",
            "output": [{"type": "web_search_call", "id": "w", "status": "completed"}],
        }
    )
    async with client_and_engine(answer, kind=kind) as (client, engine):
        await client.with_options(default_headers={"x-session-id": "e1", "cookie": "sticky=7"}).responses.create(
            model="any",
            input="hi",
            extra_body={"top_k": 5, "odd": {"deep": [None]}},
            extra_query={"api-version": "2026-01-01", "api_key": "mine"},
        )
    assert {key: engine.requests[0][key] for key in ("top_k", "odd")} == {"top_k": 5, "odd": {"deep": [None]}}
    assert {key: engine.headers[0][key] for key in ("x-session-id", "cookie")} == {
        "x-session-id": "e1",
        "cookie": "sticky=7",
    }
    assert engine.paths[0].partition("?")[2] == "api-version=2026-01-01"


async def test_unknown_fields_and_headers_of_the_engines_answer_reach_the_client() -> None:
    step = Step({**CALLS, "odd": {"deep": 1}}, headers={"x-request-id": "req-9", "set-cookie": "sticky=8; Path=/"})
    async with client_and_engine(step) as (client, _):
        raw = await client.chat.completions.with_raw_response.create(model="any", messages=HELLO)
        response = await client.responses.create(model="any", input="hi")
    assert raw.headers["set-cookie"] == "sticky=8; Path=/"
    assert (raw.request_id, response._request_id) == ("req-9", "req-9")
    assert cast(Any, response).odd == cast(Any, raw.parse()).odd == {"deep": 1}


@pytest.mark.parametrize("name", ["engine-model", "Qwen/Qwen3-4B"])
async def test_the_model_is_listed_and_found_by_its_name(name: str) -> None:
    async with client_and_engine(model=name) as (client, _):
        assert [model.id async for model in client.models.list()] == [name]
        assert (await client.models.retrieve(name)).id == name
        assert (await run_sync_client(client, lambda c: c.models.retrieve(name))).object == "model"


async def test_an_unknown_model_is_not_found() -> None:
    async with client_and_engine() as (client, _):
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
        async with client.chat.completions.stream(model="any", messages=messages, tools=CHAT_TOOLS) as chunks:
            chunked = await chunks.get_final_completion()
    calls = [cast(Any, response.output[0]), cast(Any, streamed.output[0])]
    calls += [cast(Any, answer.choices[0].message.tool_calls)[0].function for answer in (chat, chunked)]
    assert [call.name for call in calls] == ["step"] * 4
    assert len({call.arguments for call in calls}) == 1
