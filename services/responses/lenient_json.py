"""Parses JSON from engines and models. Lone surrogates and bytes that are not UTF-8 become U+FFFD.

orjson can neither parse nor write them, but a model can generate such text. Anything else that is invalid is rejected.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import orjson

_HALF_PAIR = re.compile("[\ud800-\udfff]")


def loads(text: bytes) -> Any:
    """Parse a JSON value. Raises orjson.JSONDecodeError, which is a ValueError, for invalid JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as strict:
        try:
            return _clean(json.loads(text.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            raise strict from None


def as_text(value: Any) -> str:
    """Return a value as JSON text, or a placeholder if it is nested too deeply to be written."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return '"(nested too deeply)"'


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF_PAIR.sub("\ufffd", value)
    if isinstance(value, dict):
        # NaN in a call's arguments is an invalid tool call by the model; elsewhere it is an engine error.
        return {
            _clean(key): _arguments_text(item) if key == "arguments" else _clean(item) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not JSON")
    return value


def _arguments_text(arguments: Any) -> Any:
    if isinstance(arguments, str):
        return _clean(arguments)
    return _HALF_PAIR.sub("\ufffd", json.dumps(arguments, ensure_ascii=False))
