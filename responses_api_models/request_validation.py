"""Checks the field types of the create requests that a model server receives.

Only fields whose type the code relies on are checked. Unknown fields are accepted, values are validated by the engine,
and a null field counts as absent.
"""

from __future__ import annotations

from typing import Any

from rollyard.records.types import Json
from rollyard.responses_api_models.conversion import unconvertible

_NAMES = {str: "text", list: "a list", dict: "an object", bool: "true or false", int: "a number"}
_COMMON: dict[str, tuple[type, ...]] = {
    "tools[]": (dict,),
    "tools[].function": (dict,),
    "tool_choice": (str, dict),
    "tool_choice.function": (dict,),
    "tool_choice.allowed_tools": (dict,),
    "metadata": (dict,),
    "stream_options": (dict,),
    "chat_template_kwargs": (dict,),
    "top_logprobs": (int,),
}
_RESPONSES: dict[str, tuple[type, ...]] = {
    **_COMMON,
    "input": (str, list),
    "instructions": (str,),
    "include[]": (str,),
    "text": (dict,),
    "text.format": (dict,),
    "reasoning": (dict,),
    "reasoning.effort": (str,),
}
_CHAT: dict[str, tuple[type, ...]] = {
    **_COMMON,
    "messages[]": (dict,),
    "messages[].tool_calls[]": (dict,),
    "response_format": (dict,),
    "response_format.json_schema": (dict,),
    "reasoning_effort": (str,),
}

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def check_responses_request(request: Json) -> None:
    """Check the types and token limits of a Responses create request. Raises Failure bad_request if one is invalid."""
    _check(request, _RESPONSES)
    check_limits(request)


def check_chat_request(request: Json) -> None:
    """Check the types and token limits of a chat create request. Raises Failure bad_request if one is invalid."""
    _check(request, _CHAT)
    check_limits(request)


def check_limits(request: Json) -> None:
    """Raises Failure bad_request for an output limit of less than one token. Engines would reject it with the same
    message as a prompt that fills the context.
    """
    for name in _LIMITS:
        value = request.get(name)
        if isinstance(value, int | float) and value < 1:
            raise unconvertible(name, f"found {value}; expected at least 1, or no limit")


def _check(request: Json, shapes: dict[str, tuple[type, ...]]) -> None:
    for path, expected in shapes.items():
        if path.partition(".")[0].removesuffix("[]") in request:
            _check_value(request, path.split("."), expected, "")


def _check_value(value: Any, path: list[str], expected: tuple[type, ...], where: str) -> None:
    if not path:
        if not isinstance(value, expected):
            required = " or ".join(_NAMES[kind] for kind in expected)
            raise unconvertible(where, f"found {str(value)[:100]!r} ({type(value).__name__}); expected {required}")
        return
    if not isinstance(value, dict):
        return  # reported by the rule for this field itself
    name = path[0].removesuffix("[]")
    if (found := value.get(name)) is None:
        return
    where = f"{where}.{name}" if where else name
    if name == path[0]:
        _check_value(found, path[1:], expected, where)
        return
    if not isinstance(found, list):
        raise unconvertible(where, f"found {str(found)[:100]!r} ({type(found).__name__}); expected a list")
    for index, one in enumerate(found):
        _check_value(one, path[1:], expected, f"{where}[{index}]")
