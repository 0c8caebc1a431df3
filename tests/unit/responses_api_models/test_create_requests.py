"""Every model server refuses a malformed create request with status 400 and the field's name, and never retries it."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.run_types import Keys
from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.app import BuiltinModel
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.request import Receive, Scope, Send
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context, Server
from tests.support.scripted_engine import COMPLETION, empty_directory, engine, model_server, post_json
from tests.unit.responses_api_models.chat_engine.test_empty_answers import RESPONSE

CALL: Json = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESPONSES_REQUESTS: list[tuple[str, Json]] = [
    ("reasoning", {"reasoning": "high"}),
    ("reasoning.effort", {"reasoning": {"effort": ["high"]}}),
    ("text", {"text": "json"}),
    ("text.format", {"text": {"format": "json_object"}}),
    ("tools[0]", {"tools": [1]}),
    ("tools", {"tools": "step"}),
    ("tools[1].function", {"tools": [{"type": "function", "name": "f"}, {"type": "function", "function": "f"}]}),
    ("tool_choice", {"tools": [{"type": "function", "name": "f"}], "tool_choice": 7}),
    ("instructions", {"instructions": ["be brief"]}),
    ("include", {"include": "everything"}),
    ("metadata", {"metadata": "x"}),
    ("stream_options", {"stream_options": "usage", "stream": True}),
    ("top_logprobs", {"top_logprobs": "5"}),
    ("input", {"input": 5}),
]
CONVERTED_REQUESTS: list[tuple[str, Json]] = [
    ("tool_choice", {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function"}}),
    ("tool_choice.tools", {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "allowed_tools"}}),
    ("input[0]", {"input": [1]}),
    ("input[0]", {"input": [{"role": "user"}]}),
    ("input[0].content", {"input": [{"role": "user", "content": 5}]}),
    ("input[1]", {"input": [CALL, {"type": "reasoning", "summary": [5]}]}),
]
CHAT_REQUESTS: list[tuple[str, Json]] = [
    ("messages", {"messages": "hi"}),
    ("messages[0]", {"messages": ["hi"]}),
    ("messages[0].tool_calls", {"messages": [{"role": "assistant", "tool_calls": "step"}]}),
    ("response_format", {"response_format": "json"}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema", "json_schema": "x"}}),
    ("reasoning_effort", {"reasoning_effort": {"effort": "high"}}),
    ("tools[0]", {"tools": [None]}),
    ("stream_options", {"stream_options": True, "stream": True}),
]
MODEL_SERVERS: list[type[Server]] = [VllmModel, OpenaiModel, BuiltinModel]


async def check_refusals(kind: type[Server], path: str, requests: list[tuple[str, Json]], **options: Any) -> None:
    base: Json = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    async with engine() as fake:
        endpoint = {} if kind is BuiltinModel else {"base_url": fake.url}
        async with model_server(kind, **endpoint, **options) as server:
            for field, request in requests:
                answer, problem = await post_json(server, path, {**base, **request})
                assert (answer.status, problem["type"]) == (400, "urn:rollyard:bad_request"), request
                assert problem["detail"].startswith(f"{field}:")
    assert fake.requests == []


@pytest.mark.parametrize("kind", MODEL_SERVERS)
async def test_a_malformed_request_is_refused_with_its_fields_name(kind: type[Server]) -> None:
    await check_refusals(kind, "/v1/responses", RESPONSES_REQUESTS)
    await check_refusals(kind, "/v1/chat/completions", CHAT_REQUESTS)


@pytest.mark.parametrize("tokens", [False, True])
async def test_a_request_that_cannot_become_a_chat_request_is_refused_with_its_fields_name(tokens: bool) -> None:
    options = {"return_token_id_information": tokens, "logprobs_mode": "raw_logprobs"}
    await check_refusals(VllmModel, "/v1/responses", CONVERTED_REQUESTS, **options)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.just(CALL),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "function", "name", "format", "tools", "role", "content", "json_schema", "effort"])
            | st.sampled_from(["summary", "text", "output", "call_id", "tool_calls", "arguments", "extra_body", "id"]),
            inner | st.sampled_from(["function", "assistant", "user", "tool", "message", "reasoning", "allowed_tools"]),
            max_size=3,
        )
    ),
    max_leaves=6,
)
FIELDS = (
    *("input", "messages", "instructions", "tools", "tool_choice", "text", "reasoning", "metadata", "include"),
    *("response_format", "stream_options", "chat_template_kwargs", "top_logprobs", "max_output_tokens", "n"),
    *("logprobs",),
    *("prompt_cache_key", "reasoning_effort", "verbosity", "seed", "temperature", "parallel_tool_calls", "stop"),
)


async def healthy_engine(scope: Scope, receive: Receive, send: Send) -> None:
    answer = RESPONSE if scope["path"].endswith("/responses") else COMPLETION
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": orjson.dumps(answer)})


async def status_of(kind: type[Server], path: str, request: Json) -> int:
    transport, keys = LocalTransport(HttpTransport()), Keys(run_id="run-1", secret="secret")
    transport.mount("http://engine:1", healthy_engine)
    endpoint = {} if kind is BuiltinModel else {"base_url": "http://engine:1/v1"}
    parsed = kind.Settings.model_validate({"model": "engine-model", **endpoint})
    server = kind(parsed, Context("policy_model", keys, ServerClient(transport, keys, AddressBook(empty_directory))))
    return (await post_json(server, path, request))[0].status


@pytest.mark.parametrize("kind", MODEL_SERVERS)
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@settings(max_examples=15)
@given(request=st.dictionaries(st.sampled_from(FIELDS), values, max_size=4), complete=st.booleans())
def test_no_create_request_causes_an_internal_error(
    kind: type[Server], path: str, request: Json, complete: bool
) -> None:
    base: Json = {"input": "hi", "messages": [{"role": "user", "content": "hi"}]} if complete else {}
    assert asyncio.run(status_of(kind, path, {**base, **request})) in (200, 400)
