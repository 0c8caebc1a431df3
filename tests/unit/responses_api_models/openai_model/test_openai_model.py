"""openai_model forwards requests and answers; failures become Rollyard's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rollyard.records.types import Json
from rollyard.responses_api_models.openai_model import app
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.upstream.settings import EndpointSettings
from tests.support.scripted_engine import COMPLETION, Step, engine, model_server, post_json

RESPONSE: Json = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [
        {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "failed"}]}
    ],
}


async def test_a_responses_request_is_forwarded_with_the_configured_model() -> None:
    request = {"input": [{"type": "item_reference", "id": "x"}], "model": "other", "odd": {"a": None}}
    async with engine(RESPONSE) as fake, model_server(OpenaiModel, base_url=fake.url) as server:
        await post_json(server, "/v1/responses", request)
    assert fake.paths == ["/v1/responses"]
    assert fake.requests == [{**request, "model": "engine-model"}]


async def test_the_bytes_of_the_answer_are_returned_unchanged() -> None:
    body = b'{"id":  "resp_1", "output": [{"type": "web_search_call"}], "status": "completed", "odd": 1.50}'
    async with engine(Step(body)) as fake, model_server(OpenaiModel, base_url=fake.url) as server:
        answer, _ = await post_json(server, "/v1/responses", {"input": "hi"})
    assert answer.body == body


async def test_a_chat_request_goes_to_the_chat_endpoint() -> None:
    request: Json = {"messages": [{"role": "user", "content": "hi"}]}
    async with engine(COMPLETION) as fake, model_server(OpenaiModel, base_url=fake.url) as server:
        _, body = await post_json(server, "/v1/chat/completions", request)
    assert fake.paths == ["/v1/chat/completions"]
    assert body == COMPLETION


async def test_a_rows_extra_body_is_merged_and_yields_to_the_request() -> None:
    request = {"input": "hi", "top_p": 0.5, "metadata": {"extra_body": '{"seed": 3, "top_p": 1}', "keep": "x"}}
    extra = {"store": False, "seed": 1}
    async with engine(RESPONSE) as fake, model_server(OpenaiModel, base_url=fake.url, extra_body=extra) as server:
        await post_json(server, "/v1/responses", request)
    expected = {"seed": 3, "top_p": 0.5, "store": False, "metadata": {"keep": "x"}}
    assert {key: fake.requests[0][key] for key in expected} == expected


@pytest.mark.parametrize("body", [b"<html>busy</html>", b'{"id": "resp', b"[1]", b"", b'"text"'], ids=repr)
async def test_an_answer_that_is_not_an_object_is_malformed_after_all_attempts(body: bytes) -> None:
    async with engine(Step(body)) as fake, model_server(OpenaiModel, base_url=fake.url) as server:
        answer, problem = await post_json(server, "/v1/responses", {"input": "hi"})
    assert (answer.status, problem["type"]) == (502, "urn:rollyard:malformed_answer")
    assert len(fake.requests) == 3


async def test_a_failed_response_is_a_failure_and_not_an_empty_turn() -> None:
    failed = {**RESPONSE, "status": "failed", "output": [], "error": {"code": "server_error", "message": "oops"}}
    async with engine(failed) as fake, model_server(OpenaiModel, base_url=fake.url) as server:
        answer, problem = await post_json(server, "/v1/responses", {"input": "hi"})
    assert (answer.status, problem["type"]) == (502, "urn:rollyard:upstream_error")
    assert "oops" in problem["detail"]


async def test_a_refusal_keeps_the_endpoints_status() -> None:
    refusal = Step({"error": {"message": "no such model"}}, 404)
    async with engine(refusal) as fake, model_server(OpenaiModel, base_url=fake.url) as server:
        answer, problem = await post_json(server, "/v1/responses", {"input": "hi"})
    assert (answer.status, problem["upstream_status"]) == (404, 404)
    assert "no such model" in problem["detail"]


def test_nemo_gyms_setting_names_are_accepted() -> None:
    names = {"openai_base_url": "http://h/v1", "openai_api_key": "k", "openai_model": "m"}
    settings = EndpointSettings(**names)
    assert (settings.base_url, settings.model) == ("http://h/v1", "m")


def test_the_default_config_fits_the_settings() -> None:
    text = (Path(app.__file__).parent / "configs" / "openai_model.yaml").read_text()
    defaults = yaml.safe_load(text)["policy_model"]["responses_api_models"]["openai_model"]
    assert OpenaiModel.Settings(**{**defaults, "base_url": "http://h/v1"}).entrypoint == "app.py"
    assert app.server is OpenaiModel
