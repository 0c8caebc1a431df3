"""Sanitizes untrusted values from rollouts so that they can be shown and written as JSON."""

from __future__ import annotations

import math
from typing import Any

import orjson

from rollyard.records.io.json_values import number

MAX_DEPTH = 100
"""Maximum nesting depth of lists and objects. Deeper nesting is treated as malicious."""


def pretty(value: Any) -> str:
    """Format a value as human-readable JSON."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


def sanitize(value: Any, depth: int = 0) -> Any:
    """Make a value serializable as JSON by replacing NaN, lone surrogates, huge integers and deeply nested values."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is int:
        return value if -(2**63) <= value < 2**64 else number(value, None)
    if kind is dict or kind is list:
        if depth >= MAX_DEPTH:
            return "(nested too deeply to be shown)"
        if kind is list:
            return [sanitize(item, depth + 1) for item in value]
        return {sanitize(key, depth + 1): sanitize(item, depth + 1) for key, item in value.items()}
    return value
