"""A turn as a whole OpenAI Responses object, and what a request says about chance."""

from __future__ import annotations

import time

import orjson

from rollyard.responses_api_models.builtin_model.policy import Turn
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.types import Json

BYTES_A_TOKEN = 4
ECHOED = ("instructions", "max_output_tokens", "metadata", "previous_response_id", "reasoning", "text", "top_p", "user")


def response(request: Json, turn: Turn, *, model: str, temperature: float, tag: str, heard_bytes: int) -> Json:
    """The Response to `request`; every id in it is made of `tag`."""
    if turn.arguments is None:
        said = turn.text
        part: Json = {"type": "output_text", "text": said, "annotations": [], "logprobs": None}
        item: Json = {"id": f"msg_{tag}", "type": "message", "role": "assistant", "content": [part]}
    else:
        said = turn.arguments
        item = {"id": f"fc_{tag}", "type": "function_call", "call_id": f"call_{tag}", "name": "step", "arguments": said}
    item["status"] = "completed"
    heard_tokens = heard_bytes // BYTES_A_TOKEN + 1
    said_tokens = len(said) // BYTES_A_TOKEN + 1
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
            "input_tokens": heard_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": said_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": heard_tokens + said_tokens,
        },
    }
    for name in ECHOED:
        whole[name] = get(name)
    return whole


def _tool(tool: Json) -> Json:
    """The tool as a Response lists it: `strict` and `parameters` may be left out of a request, but not there."""
    if tool.get("type") != "function" or ("strict" in tool and "parameters" in tool):
        return tool
    return {"parameters": None, "strict": None, **tool}


def can_step(request: Json) -> bool:
    """True when the request offers the tool `step` and allows it to be called."""
    if request.get("tool_choice") == "none":
        return False
    return any(tool.get("name") == "step" for tool in request.get("tools") or ())


def seed_of(request: Json) -> object:
    """The request's seed: `seed`, or the one in NeMo Gym's `metadata.extra_body`; None when it has none."""
    seed = request.get("seed")
    if seed is not None:
        return seed
    extra = (request.get("metadata") or {}).get("extra_body")
    if extra is None:
        return None
    try:
        return (orjson.loads(extra) if isinstance(extra, str) else extra).get("seed")
    except (ValueError, AttributeError) as error:
        detail = f'metadata.extra_body is {extra!r}; a JSON object as text is expected, such as {{"seed": 3}}'
        raise Failure(FailureKind.BAD_REQUEST, detail) from error


def temperature_of(request: Json, default: float) -> float:
    """The request's temperature. Raises Failure bad_request where it is no number from 0 up."""
    temperature = request.get("temperature")
    if temperature is None:
        return default
    if not isinstance(temperature, int | float) or not temperature >= 0:
        raise Failure(FailureKind.BAD_REQUEST, f"temperature is {temperature!r}; a number from 0 up is expected")
    return float(temperature)
