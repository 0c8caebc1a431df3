"""Errors in OpenAI's official client: the right exception with a readable message, and no retries on top of retries."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import APIStatusError, AsyncOpenAI, AuthenticationError, BadRequestError, RateLimitError

from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.app import BuiltinModel
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.server.app import Server
from tests.support.fixtures import unused_url
from tests.support.openai_client import (
    HELLO,
    MODEL_SERVERS,
    client_and_engine,
    client_of_server,
    make_openai_client,
    run_sync_client,
)
from tests.support.scripted_engine import Step

OVERFLOW = "This model's maximum context length is 2048 tokens. However, your prompt contains 2049 input tokens"


async def chat(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(model="any", messages=HELLO, **more)


async def respond(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.responses.create(model="any", input="hi", **more)


async def error_of(client: AsyncOpenAI, call: Any = respond, **more: Any) -> APIStatusError:
    with pytest.raises(APIStatusError) as caught:
        await call(client, **more)
    return caught.value


def refusal(status: int, **headers: str) -> Step:
    """An error in OpenAI's format."""
    return Step({"error": {"message": "that is why", "type": "x", "param": None, "code": "its_code"}}, status, headers)


@pytest.mark.parametrize(
    ("status", "exception", "expected"),
    [
        (400, openai.BadRequestError, 400),
        (401, openai.AuthenticationError, 401),
        (403, openai.PermissionDeniedError, 403),
        (404, openai.NotFoundError, 404),
        (409, openai.ConflictError, 409),
        (422, openai.UnprocessableEntityError, 422),
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


async def test_the_synchronous_client_raises_the_same_exception() -> None:
    async with client_and_engine(refusal(404)) as (client, _):
        with pytest.raises(openai.NotFoundError, match="that is why"):
            await run_sync_client(client, lambda c: c.responses.create(model="any", input="hi"))


@pytest.mark.parametrize("kind", MODEL_SERVERS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_context_overflow_has_openais_error_code(kind: type[Server], stream: bool) -> None:
    step = Step({"error": {"message": OVERFLOW, "type": "BadRequestError", "code": 400}}, 400)
    async with client_and_engine(step, kind=kind) as (client, _):
        error = await error_of(client, stream=stream)
    assert (type(error), error.code) == (BadRequestError, "context_length_exceeded")
    assert OVERFLOW in error.message


async def test_an_invalid_request_is_a_bad_request_of_the_model_server() -> None:
    async with client_and_engine() as (client, engine):
        error = await error_of(client, previous_response_id="resp_0")
    assert (type(error), error.code, engine.requests) == (BadRequestError, "bad_request", [])
    assert "previous_response_id: " in error.message


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


async def test_the_exception_has_the_endpoints_request_id() -> None:
    async with client_and_engine(refusal(400, **{"x-request-id": "req-9"})) as (client, _):
        assert (await error_of(client)).request_id == "req-9"


async def test_a_rate_limit_keeps_the_endpoints_retry_after() -> None:
    async with client_and_engine(refusal(429, **{"retry-after": "7"}), max_attempts=1) as (client, _):
        error = await error_of(client)
    assert isinstance(error, RateLimitError)
    assert error.response.headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("step", "attempts"),
    [(refusal(429), 2), (refusal(500), 2), (refusal(409), 2), (Step(b"<html>"), 2)],
    ids=["429", "500", "409", "html"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_does_not_retry_what_the_server_has_already_retried(
    step: Step, attempts: int, stream: bool
) -> None:
    async with client_and_engine(step, retries=2, max_attempts=2) as (client, engine):
        await error_of(client, stream=stream)
    assert len(engine.requests) == attempts


async def test_an_unreachable_endpoint_is_a_server_error_that_names_it() -> None:
    url = unused_url() + "/v1"
    async with client_of_server(VllmModel, base_url=url, max_attempts=1) as client:
        error = await error_of(client)
    assert (type(error), error.status_code, error.code) == (openai.InternalServerError, 503, "unreachable")
    assert url in error.message


async def test_an_unreachable_server_is_a_connection_error() -> None:
    async with make_openai_client(unused_url() + "/v1") as client:
        with pytest.raises(openai.APIConnectionError):
            await respond(client)


async def test_a_client_with_a_short_timeout_times_out() -> None:
    async with client_and_engine(Step(delay_s=60)) as (client, _):
        with pytest.raises(openai.APITimeoutError):
            await respond(client, timeout=0.1)


async def test_injected_faults_look_like_those_of_an_endpoint_to_the_client() -> None:
    faults: Json = {"rate_limit_rate": 1.0, "retry_after_s": 0}
    async with client_of_server(BuiltinModel, faults=faults) as client:
        error = await error_of(client.with_options(max_retries=1))
    assert (type(error), error.code) == (RateLimitError, "rate_limit_exceeded")
