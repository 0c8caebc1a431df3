"""Checks a model's tool call before it is sent: a call can reach the environment's tools, but no other endpoint."""

from __future__ import annotations

import re
from typing import Any, TypeGuard

import orjson

from rollyard.records.types import RESERVED_PATHS

MAX_ARGUMENTS = 1024 * 1024
"""Maximum size of a tool call's arguments in bytes. A server would reject larger arguments, which would count as an
internal failure instead of a mistake by the model."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def is_tool_name(name: object) -> TypeGuard[str]:
    """Return whether `/name` can only be a tool: it is a single path segment and not a protocol endpoint."""
    return (
        isinstance(name, str)
        and _TOOL_NAME.fullmatch(name) is not None
        and name.strip(".") != ""
        and name.lower() not in RESERVED_PATHS
    )


def arguments_body(arguments: str) -> bytes:
    """Return the request body for a tool call.

    Raises ValueError, with a message for the model, unless the arguments are a valid JSON object. Servers of other
    frameworks accept NaN, lone surrogates and unlimited nesting, and fail on them later.
    """
    try:
        body = arguments.encode()
        if len(body) > MAX_ARGUMENTS:
            raise ValueError(f"{len(body)} bytes exceed the limit of {MAX_ARGUMENTS} bytes")
        if not body.strip():
            return b"{}"
        value = orjson.loads(body)
        orjson.dumps(value)
    except TypeError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("they contain a lone surrogate, which is not valid text") from error
    if not isinstance(value, dict):
        raise ValueError(f"found a JSON {type(value).__name__}")
    return body


def expected_arguments(tools: Any, name: str) -> str:
    """Describe, for the model, the arguments that the request declares for the tool with this name."""
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and tool.get("name") == name and isinstance(tool.get("parameters"), dict):
            schema = orjson.dumps(tool["parameters"].get("properties")).decode()
            return f"Expected a JSON object with {schema[:2000]}."
    return "Expected a JSON object."
