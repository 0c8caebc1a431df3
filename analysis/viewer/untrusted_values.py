"""Reads rows, and makes their untrusted values fit to be shown and to be written as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

from rollyard.records.jsonl import lenient
from rollyard.records.types import TOKEN_FIELDS, Json, mapping, number

MAX_DEPTH = 100
"""Maximum nesting depth of lists and objects. Deeper nesting is treated as malicious."""
_MAX_BYTES = 2000
"""Maximum size of a value in bytes of JSON. Longer strings are cut; longer lists and objects only show their size."""
_CONVERSATION = {"responses_create_params": ("input", "instructions"), "response": ("output", "instructions", "tools")}


def pretty(value: Any) -> str:
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


def as_row(line: bytes) -> Json | None:
    """Parse a line and sanitize it for JSON; None if it is not an object."""
    try:
        row = sanitize(lenient(line))
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def row_facts(row: Mapping[str, Any]) -> Json:
    """Return all fields except the conversation, with long values shortened."""
    facts: Json = {}
    for key, value in row.items():
        if key in _CONVERSATION and isinstance(value, dict):
            kept = {
                name: field for name, field in value.items() if name not in _CONVERSATION[key] and field is not None
            }
            if shortened := shortened_values(kept):
                facts[key] = shortened
        elif key not in TOKEN_FIELDS:
            facts[key] = _short(value)
    return facts


def shortened_values(values: Json) -> Json:
    return {key: _short(value) for key, value in mapping(values).items()}


def _short(value: Any) -> Any:
    length = len(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    if length <= _MAX_BYTES:
        return value
    if isinstance(value, str):
        return f"{value[:_MAX_BYTES]}... ({len(value)} characters)"
    kind = "a list" if isinstance(value, list) else "an object"
    return f"({kind} of {len(value)}, {length:,} bytes; see the raw JSON)"
