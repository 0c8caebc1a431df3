"""Converts Responses to messages of Anthropic's Messages API. Blocks keep the order of the items."""

from __future__ import annotations

import uuid
from typing import Any

import orjson

from rollyard.records.types import TOKEN_FIELDS, Json
from rollyard.responses_api_models.convert.anthropic_requests import INVALID_ARGUMENTS
from rollyard.responses_api_models.convert.stop_sequences import StopSequences
from rollyard.services.responses.response_validity import check_response, malformed

STOPPED_BY = "stop_sequence"
"""Field of a Response with the stop sequence that ended it, if the engine reports it."""


def response_to_message(response: Json, stop: StopSequences) -> Json:
    """Convert a complete Response.

    `stop`: the request's stop sequences. If the engine ignored them, the message ends at the first one.
    """
    check_response(response)
    try:
        content = _content(response["output"], stop)
        message = {**empty_message(response), "content": content}
        message |= ending(response, content, stop)
        message["usage"] = usage_of(response)
        message |= {key: item[key] for item in response["output"][-1:] for key in TOKEN_FIELDS if key in item}
        return message
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise malformed(f"has an unexpected structure ({type(error).__name__}: {error})", response) from error


def empty_message(response: Json) -> Json:
    """Return the message before its first block."""
    serial = str(response.get("id") or uuid.uuid4().hex).removeprefix("resp_")
    return {
        "id": f"msg_{serial}",
        "type": "message",
        "role": "assistant",
        "model": response.get("model") or "",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_of({}),
    }


def ending(response: Json, content: list[Json], stop: StopSequences) -> Json:
    """Return why the message ended, as `stop_reason` and `stop_sequence`."""
    reported = response.get(STOPPED_BY)
    matched = stop.matched or (reported if isinstance(reported, str) and reported in stop.sequences else None)
    if matched is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    reason = (response.get("incomplete_details") or {}).get("reason")
    if reason == "max_output_tokens":
        found = "max_tokens"
    elif reason == "content_filter" or any(_is_refusal(item) for item in response["output"]):
        found = "refusal"
    else:
        found = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    return {"stop_reason": found, "stop_sequence": None}


def usage_of(response: Json) -> Json:
    """Return the usage. Tokens that the engine read from its cache are not part of `input_tokens`."""
    usage = response.get("usage") or {}
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": max((usage.get("input_tokens") or 0) - cached, 0),
        "output_tokens": usage.get("output_tokens") or 0,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }


def tool_use(item: Json) -> Json:
    """Convert a tool call to a block. Arguments that are not a JSON object are kept as text under one key."""
    text = item["arguments"]
    try:
        arguments: Any = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {INVALID_ARGUMENTS: text}
    return {"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": arguments}


def _content(output: list[Json], stop: StopSequences) -> list[Json]:
    content: list[Json] = []
    for item in output:
        kind = item["type"]
        if kind == "reasoning":
            parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
            content += [{"type": "thinking", "thinking": part["text"], "signature": ""} for part in parts]
        elif kind == "function_call":
            content.append(tool_use(item))
        elif kind == "message":
            for part in item["content"]:
                text = part.get("text") if part.get("text") is not None else part["refusal"]
                text = stop.feed(text) + ("" if stop.matched else stop.rest())
                if text or not stop.matched:
                    content.append({"type": "text", "text": text, "citations": None})
                if stop.matched:
                    return content
    return content


def _is_refusal(item: Json) -> bool:
    return item["type"] == "message" and any(part.get("type") == "refusal" for part in item["content"])
