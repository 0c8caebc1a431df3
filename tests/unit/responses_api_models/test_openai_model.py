"""openai_model forwards requests and answers; failures become Rollyard's own."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import APIStatusError, AsyncOpenAI, AuthenticationError

from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.app import BuiltinModel
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.upstream.settings import EndpointSettings
from tests.support.openai_client import HELLO, client_and_engine, client_of_server
from tests.support.scripted_engine import Step, engine, model_server, post_json

RESPONSE: Json = {
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
    async with engine(RESPONSE) as fake, model_server(OpenaiModel, base_url=fake.url, extra_body=extra) as server:
        await post_json(server, "/v1/responses", request)
    expected = {"seed": 3, "top_p": 0.5, "store": False, "metadata": {"keep": "x"}}
    assert {key: fake.requests[0][key] for key in expected} == expected


def test_nemo_gyms_setting_names_are_accepted() -> None:
    names = {"openai_base_url": "http://h/v1", "openai_api_key": "k", "openai_model": "m"}
    settings = EndpointSettings(**names)
    assert (settings.base_url, settings.model) == ("http://h/v1", "m")


async def chat(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(model="any", messages=HELLO, **more)


async def respond(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.responses.create(model="any", input="hi", **more)


async def error_of(client: AsyncOpenAI, call: Any = respond, **more: Any) -> APIStatusError:
    with pytest.raises(APIStatusError) as caught:
        await call(client, **more)
    return caught.value


def refusal(status: int, **headers: str) -> Step:
    return Step({"error": {"message": "that is why", "type": "x", "param": None, "code": "its_code"}}, status, headers)


@pytest.mark.parametrize(
    ("status", "exception", "expected"),
    [
        (400, openai.BadRequestError, 400),
        (401, openai.AuthenticationError, 401),
        (403, openai.PermissionDeniedError, 403),
        (404, openai.NotFoundError, 404),
        (429, openai.RateLimitError, 429),
        (500, openai.InternalServerError, 502),
        (503, openai.InternalServerError, 502),
    ],
)
async def test_each_refusal_raises_its_own_exception_in_both_apis_streamed_or_not(
    status: int, exception: type[APIStatusError], expected: int
) -> None:
    async with client_and_engine(refusal(status), max_attempts=1) as (client, _):
        errors = [await error_of(client, call, stream=stream) for call in (chat, respond) for stream in (False, True)]
    assert [(type(error), error.status_code, error.code) for error in errors] == [(exception, expected, "its_code")] * 4
    assert all("that is why" in error.message for error in errors)


async def test_an_unknown_path_is_not_found() -> None:
    async with client_and_engine() as (client, _):
        with pytest.raises(openai.NotFoundError, match=r"/v1/embeddings .*/v1/responses"):
            await client.embeddings.create(model="any", input="hi")


async def test_a_client_needs_the_run_token() -> None:
    async with client_of_server(BuiltinModel, token="the run token") as client:
        error = await error_of(client)
        answer = await respond(client.with_options(api_key="the run token"))
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
