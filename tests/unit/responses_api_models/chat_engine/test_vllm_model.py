"""vllm_model in front of a scripted engine: its requests, its responses and its failures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import yaml
from openai.types.responses import Response

from rollyard.records.types import Json
from rollyard.responses_api_models.vllm_model import app
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from tests.support.scripted_engine import COMPLETION, Step, completion, engine, model_server, post_json
from tests.support.waiting import deadline_s, until

HI: Json = {"input": "hi"}
CHAT: Json = {"messages": [{"role": "user", "content": "hi"}]}


def with_tokens() -> Json:
    answer = completion({"content": "hi"}, prompt_token_ids=[1, 2])
    entries = [{"token": "h", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    answer["choices"][0].update(token_ids=[3], logprobs={"content": entries})
    return answer


async def engine_request(request: Json, path: str = "/v1/responses", **settings: Any) -> Json:
    """The request that the engine receives."""
    async with engine() as fake, model_server(VllmModel, base_url=fake.url, **settings) as server:
        answer, body = await post_json(server, path, request)
        assert answer.status == 200, body
        return fake.requests[0]


async def answer_of(step: Step | Json, path: str = "/v1/responses", **settings: Any) -> tuple[int, Json]:
    """Status and body of the server's response when the engine answers with `step`."""
    async with engine(step) as fake, model_server(VllmModel, base_url=fake.url, **settings) as server:
        answer, body = await post_json(server, path, HI if path == "/v1/responses" else CHAT)
        return answer.status, body


async def test_a_response_is_valid_and_repeats_its_request() -> None:
    async with engine() as fake, model_server(VllmModel, base_url=fake.url) as server:
        tools = [{"type": "function", "name": "step", "parameters": {"type": "object"}, "strict": True}]
        _, body = await post_json(
            server, "/v1/responses", {**HI, "tools": tools, "temperature": 0.8, "metadata": {"a": "b"}}
        )
    response = Response.model_validate(body)
    assert response.output_text == "hello"
    assert (response.temperature, response.metadata) == (0.8, {"a": "b"})
    assert body["tools"] == tools


async def test_the_model_name_of_the_settings_replaces_that_of_the_request() -> None:
    assert (await engine_request({**HI, "model": "other"}))["model"] == "engine-model"
    assert (await engine_request({**CHAT, "model": "other"}, "/v1/chat/completions"))["model"] == "engine-model"


async def test_a_chat_call_keeps_unknown_fields_and_the_bytes_of_the_answer() -> None:
    body = b' {"choices": [{"message": {"content": "a"}}], "odd":  1}\n'
    async with engine(Step(body)) as fake, model_server(VllmModel, base_url=fake.url) as server:
        answer, _ = await post_json(server, "/v1/chat/completions", {**CHAT, "guided_regex": "a+", "n": 2})
    assert fake.requests[0] == {**CHAT, "guided_regex": "a+", "n": 2, "model": "engine-model"}
    assert answer.body == body


async def test_with_recorded_tokens_a_stream_is_made_from_the_complete_answer() -> None:
    for path, request_ in [("/v1/responses", HI), ("/v1/chat/completions", CHAT)]:
        settings: Json = {"return_token_id_information": True, "logprobs_mode": "raw_logprobs", "token_in": "off"}
        async with engine(with_tokens()) as fake, model_server(VllmModel, base_url=fake.url, **settings) as server:
            answer, _ = await post_json(server, path, {**request_, "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert b'"generation_token_ids":[3]' in answer.body
        assert not any("stream" in request for request in fake.requests)


async def test_extra_body_yields_to_the_request_and_sampling_overrides_do_not() -> None:
    for path in ["/v1/responses", "/v1/chat/completions"]:
        request = {**(HI if path == "/v1/responses" else CHAT), "top_p": 0.5, "temperature": 0.2}
        extra = {"top_p": 0.9, "top_k": 20}
        body = await engine_request(request, path, extra_body=extra, sampling_overrides={"temperature": 1.0})
        assert (body["top_p"], body["top_k"], body["temperature"]) == (0.5, 20, 1.0)


async def test_a_rows_metadata_takes_precedence_over_the_settings() -> None:
    for path in ["/v1/responses", "/v1/chat/completions"]:
        request = {
            **(HI if path == "/v1/responses" else CHAT),
            "metadata": {"extra_body": '{"seed": 3}', "chat_template_kwargs": '{"enable_thinking": true}'},
        }
        settings = {"extra_body": {"seed": 1}, "chat_template_kwargs": {"enable_thinking": False, "a": 1}}
        body = await engine_request(request, path, **settings)
        assert (body["seed"], body["chat_template_kwargs"]) == (3, {"enable_thinking": True, "a": 1})
        assert "metadata" not in body


async def test_a_call_with_metadata_does_not_change_the_settings() -> None:
    async with engine() as fake:
        settings = {"extra_body": {"a": 1}, "chat_template_kwargs": {"b": 1}}
        async with model_server(VllmModel, base_url=fake.url, **settings) as server:
            metadata = {"extra_body": '{"a": 2}', "chat_template_kwargs": '{"b": 2}'}
            await post_json(server, "/v1/responses", {**HI, "metadata": metadata})
            await post_json(server, "/v1/responses", HI)
    assert (fake.requests[1]["a"], fake.requests[1]["chat_template_kwargs"]) == (1, {"b": 1})


async def test_the_developer_role_is_mapped_as_the_settings_say() -> None:
    for mapped, role in [(True, "system"), (False, "developer")]:
        for path in ["/v1/responses", "/v1/chat/completions"]:
            conversation = [{"role": "developer", "content": "x"}]
            request = {"input": conversation} if path == "/v1/responses" else {"messages": conversation}
            body = await engine_request(request, path, replace_developer_role_with_system=mapped)
            assert body["messages"][0]["role"] == role


async def test_without_a_reasoning_parser_reasoning_is_split_off_and_restored() -> None:
    answer = completion({"content": "<think>hm</think>ok"})
    async with (
        engine(answer) as fake,
        model_server(VllmModel, base_url=fake.url, uses_reasoning_parser=False) as server,
    ):
        _, body = await post_json(server, "/v1/responses", HI)
        await post_json(server, "/v1/responses", {"input": body["output"]})
    assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
    assert fake.requests[1]["messages"][0] == {"role": "assistant", "content": "<think>hm</think>ok"}


async def test_reasoning_is_sent_back_in_the_configured_field() -> None:
    output = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}]
    message = (await engine_request({"input": output}, reasoning_field="reasoning"))["messages"][0]
    assert message == {"role": "assistant", "content": "", "reasoning": "hm"}


async def test_with_token_ids_enabled_they_are_requested_and_the_last_item_carries_them() -> None:
    async with (
        engine(with_tokens()) as fake,
        model_server(VllmModel, base_url=fake.url, return_token_id_information=True, token_in="off") as server,
    ):
        _, body = await post_json(server, "/v1/responses", HI)
    expected = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
    assert {key: fake.requests[0][key] for key in expected} == expected
    last = body["output"][-1]
    assert (last["prompt_token_ids"], last["generation_token_ids"]) == ([1, 2], [3])
    assert last["generation_log_probs"] == [-0.5]
    Response.model_validate(body)


async def test_with_token_ids_enabled_a_chat_message_carries_them_too() -> None:
    _, body = await answer_of(with_tokens(), "/v1/chat/completions", return_token_id_information=True)
    message = body["choices"][0]["message"]
    assert (message["prompt_token_ids"], message["generation_log_probs"]) == ([1, 2], [-0.5])


async def test_missing_token_ids_are_a_failure() -> None:
    for path in ["/v1/responses", "/v1/chat/completions"]:
        status, problem = await answer_of(COMPLETION, path, return_token_id_information=True)
        assert (status, problem["type"]) == (502, "urn:rollyard:malformed_answer")
        assert "prompt_token_ids" in problem["detail"]


async def test_a_refusal_keeps_the_engines_status_and_names_this_server() -> None:
    status, problem = await answer_of(Step({"error": {"message": "Incorrect API key"}}, 401))
    assert (status, problem["upstream_status"], problem["server"]) == (401, 401, "policy_model")
    assert problem["instance"] == "/v1/responses"
    assert "Incorrect API key" in problem["detail"]


async def test_an_answer_without_a_message_is_malformed_after_all_attempts() -> None:
    bodies: list[Json] = [{"choices": []}, {"choices": [{"index": 0}]}]
    for body in bodies:
        async with engine(body) as fake, model_server(VllmModel, base_url=fake.url) as server:
            answer, problem = await post_json(server, "/v1/responses", HI)
        assert (answer.status, problem["type"]) == (502, "urn:rollyard:malformed_answer")
        assert len(fake.requests) == 3


async def test_an_invalid_item_is_refused_before_the_engine_is_asked() -> None:
    async with engine() as fake, model_server(VllmModel, base_url=fake.url) as server:
        answer, problem = await post_json(server, "/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]})
    assert (answer.status, problem["type"]) == (400, "urn:rollyard:bad_request")
    assert not fake.requests


async def test_a_malformed_tool_call_of_the_model_is_returned_unchanged() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "nope", "arguments": '{"a'}}
    status, body = await answer_of(completion({"content": None, "tool_calls": [call]}))
    assert status == 200
    assert (body["output"][0]["name"], body["output"][0]["arguments"]) == ("nope", '{"a')


async def test_a_caller_that_disconnects_makes_the_engine_abort() -> None:
    async with engine(Step(delay_s=deadline_s())) as fake, model_server(VllmModel, base_url=fake.url) as server:
        call = asyncio.create_task(post_json(server, "/v1/responses", HI))
        await until(lambda: fake.requests)
        call.cancel()
        await asyncio.wait_for(fake.disconnected.wait(), deadline_s())


def test_the_default_config_fits_the_settings() -> None:
    text = (Path(app.__file__).parent / "configs" / "vllm_model.yaml").read_text()
    defaults = yaml.safe_load(text)["policy_model"]["responses_api_models"]["vllm_model"]
    assert VllmModelSettings(**{**defaults, "base_url": "http://h/v1"}).entrypoint == "app.py"
    assert app.server is VllmModel


def test_the_api_key_is_not_in_the_printed_settings() -> None:
    settings = VllmModelSettings(base_url="http://h/v1", model="m", api_key="sk-secret")
    assert "sk-secret" not in repr(settings) + str(settings.model_dump()) + settings.model_dump_json()
