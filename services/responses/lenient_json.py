"""JSON as engines and models write it: half surrogate pairs and bytes that are not UTF-8 become U+FFFD.

orjson refuses both, in either direction, and a model can write such text. Everything else stays an error.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import orjson

_HALF_PAIR = re.compile("[\ud800-\udfff]")


def loads(text: bytes) -> Any:
    """The JSON value. Raises ValueError (orjson's) for what is not JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as strict:
        try:
            return _clean(json.loads(text.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            raise strict from None


def as_text(value: Any) -> str:
    """A value as JSON text; a placeholder where it is nested too deeply to be written."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return '"(nested too deeply)"'


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF_PAIR.sub("\ufffd", value)
    if isinstance(value, dict):
        # NaN within a call's arguments is the model's mistake; anywhere else it is the engine's.
        return {_clean(key): _called(one) if key == "arguments" else _clean(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not JSON")
    return value


def _called(arguments: Any) -> Any:
    if isinstance(arguments, str):
        return _clean(arguments)
    return _HALF_PAIR.sub("\ufffd", json.dumps(arguments, ensure_ascii=False))
