"""Parses the engine's responses for both token backends and converts them to chat completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollyard.records.types import Json
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.services.responses.response_validity import check_finish, first_choice, malformed


def finish(completion: Json, body: Json) -> None:
    """Adapt the completion to what the chat endpoint would return: the format of its id, the finish reason of a turn
    with tool calls, and only one call if parallel calls are disabled.
    """
    serial = str(completion.get("id") or "").removeprefix("generate-tokens-").removeprefix("cmpl-")
    completion["id"] = f"chatcmpl-{serial.removeprefix('chatcmpl-')}" if serial else None
    choice, message = first_choice(completion)
    calls, tool_choice = message.get("tool_calls"), body.get("tool_choice")
    if calls and body.get("parallel_tool_calls") is False:
        message["tool_calls"] = calls[:1]
    if calls and (
        tool_choice in (None, "auto") or (tool_choice == "required" and choice.get("finish_reason") == "stop")
    ):
        choice["finish_reason"] = "tool_calls"


def logprobs_of(answer: Json, key: str) -> list[Any]:
    """Return the logprob entries, one per token. Raises Failure malformed_answer if there are no tokens."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise malformed("has no choices", answer)
    check_finish(choice.get("finish_reason"))
    ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
    entries = logprobs.get(key) if isinstance(logprobs, dict) else None
    if not ids or not isinstance(ids, list) or not isinstance(entries, list):
        raise malformed("lacks token_ids or logprobs", answer)
    return entries


def object_reader(key: str) -> Callable[[bytes], Json]:
    """Return a parser for JSON objects, which raises Failure malformed_answer if `key` is missing or empty."""

    def read(body: bytes) -> Json:
        answer = json_object(body)
        if not answer.get(key):
            raise malformed(f"has no {key}", answer)
        return answer

    return read
