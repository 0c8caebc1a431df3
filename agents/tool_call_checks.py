"""What a model wrote as a tool call, before any server sees it: nothing that it writes reaches an agent's endpoint."""

from __future__ import annotations

import re
from typing import Any, TypeGuard

import orjson

from rollyard.services.types import WORLD_PATHS

MAX_ARGUMENTS = 1024 * 1024
"""Bytes; servers refuse bodies that are too large, and a refusal would be a failure of ours."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def is_tool_name(name: object) -> TypeGuard[str]:
    """Whether the path `/name` can only be a tool: one segment, and not an endpoint of the wire format."""
    return (
        isinstance(name, str)
        and _TOOL_NAME.fullmatch(name) is not None
        and name.strip(".") != ""
        and name.lower() not in WORLD_PATHS
    )


def arguments_body(arguments: str) -> bytes:
    """The request body of a tool call. Raises ValueError, in words for the model, unless it is a plain JSON object.

    Other stacks' servers take NaN, half a surrogate pair and endless nesting, and fail at them later.
    """
    try:
        body = arguments.encode()
        if len(body) > MAX_ARGUMENTS:
            raise ValueError(f"{len(body)} bytes were written, at most {MAX_ARGUMENTS} are taken")
        if not body.strip():
            return b"{}"
        value = orjson.loads(body)
        orjson.dumps(value)
    except TypeError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair is no text") from error
    if not isinstance(value, dict):
        raise ValueError(f"found a JSON {type(value).__name__}")
    return body


def expected_arguments(tools: Any, name: str) -> str:
    """What the request's tools say about the arguments of the tool of this name, in words for the model."""
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and tool.get("name") == name and isinstance(tool.get("parameters"), dict):
            schema = orjson.dumps(tool["parameters"].get("properties")).decode()
            return f"Expected a JSON object with {schema[:2000]}."
    return "Expected a JSON object."
