"""The engines' messages for a conversation that no longer fits become one failure; similar refusals do not."""

from __future__ import annotations

import pytest

from rollyard.records.types import Json
from rollyard.responses_api_models.vllm_model.app import VllmModel
from tests.support.scripted_engine import Step, engine, model_server, post_json


def error(message: str, **more: Json | str | int | None) -> Json:
    """The body of an error response; `code` is vLLM's by default."""
    return {"error": {"message": message, "type": "BadRequestError", "code": 400, **more}}


TOO_LONG = "This model's maximum context length is 2048 tokens. However, "
OVERFLOWS: dict[str, Json] = {
    "vLLM 0.32, chat": error(
        f"{TOO_LONG}your prompt contains at least 2049 input tokens, which exceeds this limit even without any output "
        "tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=2049)",
        param="input_tokens",
    ),
    "vLLM 0.32, a prompt that just fills it": error(
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", param="max_tokens"
    ),
    "vLLM 0.32, generate": error(
        "The decoder prompt (length 2100) is longer than the maximum model length of 2048. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens."
    ),
    "vLLM 0.32, generate, a prompt that just fills it": error(
        "The decoder prompt (length 2048) plus the number of requested output tokens (at least 1) is longer than the "
        "maximum model length of 2048. Make sure that `max_model_len` is no smaller than the number of text tokens "
        "(prompt + requested output tokens)."
    ),
    "vLLM 0.8": {
        "object": "error",
        "message": f"{TOO_LONG}you requested 4000 tokens (1952 in the messages, 2048 in the completion). Please reduce "
        "the length of the messages or completion.",
        "type": "BadRequestError",
        "code": 400,
    },
    "OpenAI": error(
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        type="invalid_request_error",
        param="input",
        code="context_length_exceeded",
    ),
    "SGLang": {
        "object": "error",
        "message": "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    },
    "llama.cpp": error("the request exceeds the available context size, try increasing it"),
}
REFUSALS: dict[str, Json] = {
    "a limit above the context": error(
        "max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer output tokens."
    ),
    "no such model": error("The model `x` does not exist."),
    "a bad parameter": error("temperature must be non-negative, got -1.0.", param="temperature"),
    "a template that refuses": error("Conversation roles must alternate user/assistant/user/assistant/..."),
}
PATHS = ["/v1/responses", "/v1/chat/completions"]


async def problems_of(path: str, bodies: dict[str, Json]) -> dict[str, Json]:
    """The problem that each of these refusals becomes."""
    request: Json = {"input": "hi"} if path == PATHS[0] else {"messages": [{"role": "user", "content": "hi"}]}
    steps = [Step(body, 400) for body in bodies.values()]
    async with engine(*steps) as fake, model_server(VllmModel, base_url=fake.url) as server:
        problems = {case: (await post_json(server, path, request))[1] for case in bodies}
        assert len(fake.requests) == len(bodies)
        return problems


@pytest.mark.parametrize("path", PATHS)
async def test_every_engines_overflow_message_becomes_the_same_failure(path: str) -> None:
    for case, problem in (await problems_of(path, OVERFLOWS)).items():
        assert (problem["type"], problem["status"]) == ("urn:rollyard:context_overflow", 400), case
        assert problem["code"] == "context_length_exceeded"


async def test_another_refusal_is_not_an_overflow() -> None:
    for case, problem in (await problems_of(PATHS[0], REFUSALS)).items():
        assert problem["type"] == "urn:rollyard:upstream_refused", case
