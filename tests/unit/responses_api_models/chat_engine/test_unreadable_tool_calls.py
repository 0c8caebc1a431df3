"""Tool calls that no parser could read are named on the Response, and nothing else is."""

from __future__ import annotations

from typing import Any

from rollyard.records.types import FinishReason, Json
from rollyard.responses_api_models.chat_engine.unreadable_tool_calls import mark_unreadable_tool_call
from rollyard.responses_api_models.vllm_model.app import VllmModel
from tests.support.scripted_engine import completion, engine, model_server, post_json

TOOLS = [{"type": "function", "name": "push", "parameters": {"type": "object"}}]
CALL: Json = {"id": "c", "type": "function", "function": {"name": "push", "arguments": "{}"}}
UNREADABLE = [
    '<tool_call>{"name": "push", </tool_call>',
    'I push.\n<tool_call>\n{"name": push}',
    "<|tool_call_begin|>functions.push",
    "[TOOL_CALLS][{",
    "<function=push><parameter=to>up",
    "<｜tool▁calls▁begin｜>push",
]


async def responses_to(*messages: Json, finish_reason: str = "stop", **request: Any) -> list[Json]:
    """The Responses to requests with tools when the engine's parser produced these messages."""
    answers = [completion(message, finish_reason) for message in messages]
    async with engine(*answers) as fake, model_server(VllmModel, base_url=fake.url) as server:
        sent = {"input": "go", "tools": TOOLS, **request}
        return [(await post_json(server, "/v1/responses", sent))[1] for _ in messages]


async def response_to(message: Json, finish_reason: str = "stop", **request: Any) -> Json:
    [response] = await responses_to(message, finish_reason=finish_reason, **request)
    return response


async def test_a_call_that_stayed_in_the_text_is_reported() -> None:
    responses = await responses_to(*({"content": text} for text in UNREADABLE))
    for text, response in zip(UNREADABLE, responses, strict=True):
        assert response.get("finish_reason") == FinishReason.UNREADABLE_CALL, text
        assert response["output"][0]["content"][0]["text"] == text


async def test_plain_text_is_an_answer() -> None:
    texts = ("I am done.", "if a < b then <b>push</b>", "", "function=push")
    for response in await responses_to(*({"content": text} for text in texts)):
        assert response["status"] == "completed" and "finish_reason" not in response


async def test_a_turn_with_a_parsed_call_is_not_reported() -> None:
    message = {"content": UNREADABLE[0], "tool_calls": [CALL]}
    assert "finish_reason" not in await response_to(message, "tool_calls")


async def test_a_call_truncated_by_a_limit_is_reported_as_incomplete() -> None:
    response = await response_to({"content": UNREADABLE[1]}, "length")
    assert (response["status"], "finish_reason" in response) == ("incomplete", False)


async def test_without_tools_in_the_request_a_call_is_plain_text() -> None:
    assert "finish_reason" not in await response_to({"content": UNREADABLE[0]}, tools=[])


def test_a_refusal_is_not_reported() -> None:
    item = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    response: Json = {"tools": TOOLS, "output": [{"type": "reasoning", "summary": []}, item]}
    mark_unreadable_tool_call(response)
    assert "finish_reason" not in response
