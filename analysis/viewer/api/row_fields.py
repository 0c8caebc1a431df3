"""Extracts a row's fields except the conversation, and shortens long values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from rollyard.records.io.json_values import mapping
from rollyard.records.types import TOKEN_FIELDS, Json

_MAX_BYTES = 2000
"""Maximum size of a value in bytes of JSON. Longer strings are cut; longer lists and objects only show their size."""
_CONVERSATION = {"responses_create_params": ("input", "instructions"), "response": ("output", "instructions", "tools")}


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
    """Return the object with long values shortened."""
    return {key: _short(value) for key, value in mapping(values).items()}


def _short(value: Any) -> Any:
    length = len(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    if length <= _MAX_BYTES:
        return value
    if isinstance(value, str):
        return f"{value[:_MAX_BYTES]}... ({len(value)} characters)"
    kind = "a list" if isinstance(value, list) else "an object"
    return f"({kind} of {len(value)}, {length:,} bytes; see the raw JSON)"
