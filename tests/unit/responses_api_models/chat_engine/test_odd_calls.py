"""A model that makes a mistake in a tool call gets an error text, and the conversation can continue."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletion

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.types import Json
from rollyard.responses_api_models.conversion import chat_to_response, response_to_chat
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.server.app import Context, Server
from tests.support.endpoint_matrix import LookEnvironment
from tests.support.in_process import Script, agent, environment, in_process_servers, says
from tests.support.scripted_engine import COMPLETION, Step, completion, engine, model_server, post_json


def call(name: Any = "look", arguments: Any = "{}", **more: Any) -> Json:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


ODD_NAMES: list[Any] = [call(name) for name in ("", None, 7, {"a": 1}, "x" * 5000, "look at\nit", "..", "смотри")]
ODD_ARGUMENTS: list[Any] = [
    *(call(arguments=value) for value in (None, {"a": 1}, [1], "7", '{"a": ', '{"a": NaN}', '{"a": "\\ud800"}')),
    *(call(arguments=value) for value in ("[" * 20_000, deep(300))),
]
ODD_CALLS: list[Any] = [
    call(id=None),
    call(id=3),
    {"id": "c1", "type": "custom", "custom": {"name": "look", "input": "free text"}},
    {"id": "c1", "type": "function"},
    {"id": "c1", "type": "function", "function": None},
    "look",
]


def check_calls(body: Json) -> None:
    for message in body["messages"]:
        for one in message.get("tool_calls") or ():
            assert isinstance(one["id"], str)
            assert one["id"]
            assert isinstance(one["function"]["name"], str)
            assert one["function"]["name"]
            assert isinstance(orjson.loads(one["function"]["arguments"] or "{}"), dict)


async def play_rollout(*steps: Step) -> tuple[Json, list[Json]]:
    async with engine(*steps) as fake:
        settings = VllmModelSettings(base_url=fake.url, model="engine-model", retry_pause_s=0.01)

        def policy(context: Context) -> Server:
            return VllmModel(settings, context)

        async with in_process_servers(
            {"environment": environment(LookEnvironment), "agent": agent(SimpleAgent), "model": policy}
        ) as stack:
            rollout = await stack.run({"responses_create_params": {"input": "hi"}})
    for request in fake.requests:
        check_calls(request)
    return rollout, fake.requests


@pytest.mark.parametrize("odd", [ODD_NAMES, ODD_ARGUMENTS, ODD_CALLS], ids=["names", "arguments", "calls"])
async def test_a_mistake_in_a_call_is_answered_and_the_rollout_continues(odd: list[Any]) -> None:
    """Each mistake is in a turn of its own, before a correct call."""
    turns = [completion({"content": None, "tool_calls": [one, call(id="c2")]}, "tool_calls") for one in odd]
    steps = [Step(json.dumps(turn).encode()) for turn in turns]
    rollout, requests = await play_rollout(*steps, Step(COMPLETION))
    assert (rollout["finish_reason"], len(requests)) == ("answered", len(odd) + 1)
    outputs = [item for item in rollout["response"]["output"] if item["type"] == "function_call_output"]
    assert len(outputs) == 2 * len(odd)
    orjson.dumps(rollout)


@pytest.mark.parametrize(
    "message",
    [
        rb'{"role": "assistant", "content": "a \ud800 b"}',
        rb'{"role": "assistant", "content": null, "reasoning_content": "\udfff", "tool_calls": []}',
        rb'{"content": null, "tool_calls": [{"id": "\ud800", "function": {"name": "look\ud800", "arguments": "{}"}}]}',
        rb'{"tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{\"a\": \"\ud800\"}"}}]}',
        rb'{"content": null, "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": {"a": NaN}}}]}',
        b'{"role": "assistant", "content": "a \xed\xa0\x80 b"}',
    ],
)
async def test_half_a_surrogate_pair_in_an_answer_does_not_fail_the_rollout(message: bytes) -> None:
    body = b'{"model": "engine-model", "choices": [{"index": 0, "message": %b, "finish_reason": "stop"}]}' % message
    rollout, requests = await play_rollout(Step(body), Step(COMPLETION))
    assert rollout["finish_reason"] == "answered"
    assert requests[0]["messages"]
    orjson.dumps(rollout)


NO_LISTS: list[Json] = [
    *({"tool_calls": calls} for calls in (call(arguments=None), "look()", [None], [], None)),
    {"tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]},
    {"tool_calls": [{"id": "c1", "function": {"name": "look"}}]},
    {"tool_calls": [{"id": "c1", "type": "function", "name": "look", "arguments": {}}]},
    {"function_call": {"name": "look", "arguments": {}}},
    {"function_call": {"name": "look", "arguments": None}},
]


@pytest.mark.parametrize("message", [*NO_LISTS, *({"tool_calls": [one]} for one in ODD_NAMES)])
@pytest.mark.parametrize("kind", [VllmModel, OpenaiModel])
async def test_every_call_has_the_form_that_chat_clients_read(message: Json, kind: type[Server]) -> None:
    answer = completion({"content": "a", **message}, "stop")
    async with engine(answer) as fake, model_server(kind, base_url=fake.url) as server:
        _, body = await post_json(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    read = ChatCompletion.model_validate(body).choices[0].message
    assert read.tool_calls != []
    for one in read.tool_calls or ():
        assert one.type == "function" and one.id
        assert isinstance(one.function.name, str) and isinstance(one.function.arguments, str)


async def test_a_call_in_an_endpoints_response_has_arguments_that_are_text() -> None:
    item = {"type": "function_call", "id": "f", "call_id": "c1", "name": "look", "arguments": None}
    response = {"id": "r", "object": "response", "status": "completed", "output": [item]}
    async with engine(response) as fake, model_server(OpenaiModel, base_url=fake.url) as server:
        _, body = await post_json(server, "/v1/responses", {"input": "hi"})
    assert body == {**response, "output": [{**item, "arguments": "{}"}]}


async def test_calls_of_one_turn_never_share_an_id() -> None:
    answer = completion({"content": None, "tool_calls": [call(), call(), call()]}, "tool_calls")
    rollout, _ = await play_rollout(Step(answer), Step(COMPLETION))
    output = rollout["response"]["output"]
    ids = [item["call_id"] for item in output if item["type"] == "function_call"]
    answered = [item["call_id"] for item in output if item["type"] == "function_call_output"]
    assert (len(set(ids)), sorted(answered)) == (3, sorted(ids))


async def test_the_record_keeps_what_the_model_wrote() -> None:
    odd = call("look at it", '{"a": ')
    rollout, requests = await play_rollout(Step(completion({"tool_calls": [odd]}, "tool_calls")), Step(COMPLETION))
    (recorded,) = [item for item in rollout["response"]["output"] if item["type"] == "function_call"]
    assert (recorded["name"], recorded["arguments"]) == ("look at it", '{"a": ')
    (sent,) = requests[1]["messages"][1]["tool_calls"]
    assert sent["function"] == {"name": "look_at_it", "arguments": '{"invalid_arguments":"{\\"a\\": "}'}


async def test_an_agent_answers_odd_calls_of_a_foreign_model_server_with_an_error_text() -> None:
    items: list[Json] = [
        {"type": "function_call", "name": None, "arguments": None, "call_id": None},
        {"type": "function_call"},
        {"type": "function_call", "name": "", "arguments": "", "call_id": ""},
        {"type": "function_call", "name": ["look"], "arguments": {"a": deep(100)}, "call_id": 5},
    ]
    for item in items:
        script = Script([[item, item], [says("done")]])
        make = {"environment": environment(LookEnvironment), "agent": agent(SimpleAgent), "model": script.model}
        async with in_process_servers(make) as stack:
            rollout = await stack.run({"responses_create_params": {"input": "hi"}})
        assert rollout["finish_reason"] == "answered"
        sent = [item for item in script.requests[1]["input"] if item.get("type") == "function_call"]
        assert len({item["call_id"] for item in sent}) == 2
        assert all(item["name"] and isinstance(orjson.loads(item["arguments"] or "{}"), dict) for item in sent)


def test_unknown_fields_of_calls_and_annotations_survive_both_conversions() -> None:
    cited: Json = {"type": "url_citation", "url_citation": {"url": "http://x", "start_index": 0}}
    signed = call(extra_content={"google": {"thought_signature": "abc"}})
    message = {"content": "text", "annotations": [cited], "tool_calls": [signed], "reasoning_details": [{"data": "e"}]}
    again = response_to_chat(chat_to_response(completion(message), {"input": "x"}))["choices"][0]["message"]
    assert again["tool_calls"][0]["extra_content"] == signed["extra_content"]
    assert again["annotations"] == [cited]
