"""Builds the OpenAI Response object for a turn, and reads the seed and temperature from a request."""

from __future__ import annotations

import time

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.policy import Turn

BYTES_PER_TOKEN = 4
ECHOED = ("instructions", "max_output_tokens", "metadata", "reasoning", "text", "top_p", "user")


def response(request: Json, turn: Turn, *, model: str, temperature: float, tag: str, input_bytes: int) -> Json:
    """Return the Response to `request`; all its ids contain `tag`."""
    if turn.arguments is None:
        text = turn.text
        part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
        item: Json = {"id": f"msg_{tag}", "type": "message", "role": "assistant", "content": [part]}
    else:
        text = turn.arguments
        item = {"id": f"fc_{tag}", "type": "function_call", "call_id": f"call_{tag}", "name": turn.name}
        item["arguments"] = text
    item["status"] = "completed"
    prompt_tokens = input_tokens(input_bytes)
    output_tokens = len(text) // BYTES_PER_TOKEN + 1
    get = request.get
    whole: Json = {
        "id": f"resp_{tag}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [item],
        "parallel_tool_calls": get("parallel_tool_calls") is not False,
        "temperature": temperature,
        "tool_choice": get("tool_choice") or "auto",
        "tools": [_tool(tool) for tool in get("tools") or ()],
        "usage": {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + output_tokens,
        },
    }
    for name in ECHOED:
        whole[name] = get(name)
    return whole


def input_tokens(size: int) -> int:
    """Return the number of tokens of a conversation of `size` bytes."""
    return size // BYTES_PER_TOKEN + 1


def _tool(tool: Json) -> Json:
    """Return the tool in the format of a Response: with `strict` and `parameters`, which are optional in a request."""
    if tool.get("type") != "function" or ("strict" in tool and "parameters" in tool):
        return tool
    return {"parameters": None, "strict": None, **tool}


def can_step(request: Json) -> bool:
    """Return True if the request offers the tool `step` and allows calling it."""
    if request.get("tool_choice") == "none":
        return False
    return any(tool.get("name") == "step" for tool in request.get("tools") or ())


def seed_of(request: Json) -> object:
    """Return the request's `seed`, or the one in NeMo Gym's `metadata.extra_body`; None if absent."""
    seed = request.get("seed")
    if seed is not None:
        return seed
    extra = (request.get("metadata") or {}).get("extra_body")
    if extra is None:
        return None
    try:
        return (orjson.loads(extra) if isinstance(extra, str) else extra).get("seed")
    except (ValueError, AttributeError) as error:
        detail = f'metadata.extra_body is {extra!r}; expected a JSON object in a string, such as {{"seed": 3}}'
        raise Failure(FailureKind.BAD_REQUEST, detail) from error


def temperature_of(request: Json, default: float) -> float:
    """Return the request's temperature. Raises Failure bad_request if it is not a number >= 0."""
    temperature = request.get("temperature")
    if temperature is None:
        return default
    if not isinstance(temperature, int | float) or not temperature >= 0:
        raise Failure(FailureKind.BAD_REQUEST, f"temperature is {temperature!r}; expected a number >= 0")
    return float(temperature)
