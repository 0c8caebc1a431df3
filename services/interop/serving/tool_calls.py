"""Checks the tool calls of foreign clients before they reach the environment."""

from __future__ import annotations

import re
from typing import Any

import orjson

from rollyard.records.types import RESERVED_PATHS

MAX_ARGUMENTS = 1024 * 1024
"""Maximum size of a tool call's arguments in bytes, as for Rollyard's agents."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def is_tool_name(name: str) -> bool:
    """Return whether POST `/name` can only be a tool: a single path segment that is not an endpoint of the protocol."""
    return _TOOL_NAME.fullmatch(name) is not None and name.strip(".") != "" and name.lower() not in RESERVED_PATHS


def arguments_error(arguments: Any) -> str:
    """Return what is wrong with a tool call's arguments, in words for the model; empty if they can be sent."""
    if not isinstance(arguments, dict):
        return f"the arguments are a JSON {type(arguments).__name__}; expected an object."
    try:
        size = len(orjson.dumps(arguments))
    except TypeError:
        return "the arguments are nested too deeply, or contain a number or text that JSON does not support."
    if size > MAX_ARGUMENTS:
        return f"the arguments have {size} bytes; the limit is {MAX_ARGUMENTS}."
    return ""
