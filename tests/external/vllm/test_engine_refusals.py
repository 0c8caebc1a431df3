"""How vLLM rejects prompts that are too long, and that our model servers recognize it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rollyard.records.errors import FailureKind
from rollyard.responses_api_models.upstream.response_parsing import upstream_failure
from rollyard.services.http.request import HttpResponse
from tests.external.vllm.engine import LONGEST, Engine

CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"


def rejection(engine: Engine, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = engine.client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("BadRequestError", 400)
    return {**error, "kind": upstream_failure(HttpResponse(400, {}, answer.content), "the engine", "").kind}


def chat(words: int, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": " the" * words}], **fields}


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}/render"])
def test_a_chat_longer_than_the_context_is_an_overflow(engine: Engine, path: str) -> None:
    error = rejection(engine, path, chat(LONGEST, max_tokens=10))
    assert (error["param"], error["kind"]) == ("input_tokens", FailureKind.CONTEXT_OVERFLOW)


def test_a_chat_that_fills_the_context_is_an_overflow(engine: Engine) -> None:
    frame = int(engine.post("/tokenize", chat(100))["count"]) - 100
    error = rejection(engine, CHAT, chat(LONGEST - frame, max_tokens=10))
    assert (error["param"], error["kind"]) == ("max_tokens", FailureKind.CONTEXT_OVERFLOW)


@pytest.mark.parametrize("length", [LONGEST + 1, LONGEST])
def test_too_many_tokens_for_generate_are_an_overflow(engine: Engine, length: int) -> None:
    error = rejection(engine, GENERATE, {"token_ids": [5] * length, "sampling_params": {"max_tokens": 10}})
    assert (error["param"], error["kind"]) == (None, FailureKind.CONTEXT_OVERFLOW)


def test_a_stream_of_generate_starts_with_200_and_contains_the_error(engine: Engine) -> None:
    body = {"token_ids": [5] * (LONGEST + 1), "sampling_params": {"max_tokens": 10}, "stream": True}
    answer = engine.client.post(GENERATE, json=body)
    assert answer.status_code == 200
    events = answer.text.removeprefix("data: ").strip().split("\n\ndata: ")
    assert orjson.loads(events[0])["error"]["code"] == 400
    assert events[1:] == ["[DONE]"]
