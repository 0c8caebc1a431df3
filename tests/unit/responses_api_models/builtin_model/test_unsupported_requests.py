"""The built-in model refuses what it cannot do instead of ignoring it."""

from __future__ import annotations

import pytest

from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.app import BuiltinModel
from tests.support.scripted_engine import model_server, post_json

HELLO: Json = {"messages": [{"role": "user", "content": "hi"}]}
REFUSED: list[tuple[str, Json, str]] = [
    ("/v1/responses", {"previous_response_id": "resp_1"}, "previous_response_id: this server does not store"),
    ("/v1/responses", {"conversation": "conv_1"}, "conversation: this server does not store"),
    ("/v1/responses", {"background": True}, "background: this server does not store"),
    ("/v1/responses", {"top_logprobs": 2}, "top_logprobs: policy_model has no log-probabilities"),
    ("/v1/responses", {"include": ["message.output_text.logprobs"]}, "include: policy_model has no log-probabilities"),
    ("/v1/chat/completions", {**HELLO, "logprobs": True}, "include: policy_model has no log-probabilities"),
    ("/v1/chat/completions", {**HELLO, "logprobs": True, "top_logprobs": 3}, "top_logprobs: policy_model has no"),
]


@pytest.mark.parametrize(("path", "fields", "message"), REFUSED)
@pytest.mark.parametrize("stream", [False, True])
async def test_stored_conversations_and_log_probabilities_are_refused(
    path: str, fields: Json, message: str, stream: bool
) -> None:
    async with model_server(BuiltinModel) as server:
        answer, problem = await post_json(server, path, {"input": "hi", **fields, "stream": stream})
    assert answer.status == 400 and message in problem["detail"]


@pytest.mark.parametrize("fields", [{"previous_response_id": None}, {"top_logprobs": 0}, {"include": []}])
async def test_an_empty_field_is_accepted(fields: Json) -> None:
    async with model_server(BuiltinModel) as server:
        answer, _ = await post_json(server, "/v1/responses", {"input": "hi", **fields})
    assert answer.status == 200
