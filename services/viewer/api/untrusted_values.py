"""Values out of rollouts, which may hold anything anywhere: taken as what they should be, or as nothing."""

from __future__ import annotations

import math
from typing import Any

import orjson

from rollyard.services.types import Json

DEEPEST = 100
"""Levels of lists and objects that are passed on; deeper ones only somebody with bad intentions writes."""


def mapping(value: Any) -> Json:
    """A JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """A list, else an empty one."""
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """A text, else ''."""
    return value if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """A finite number, else None. JSON's true is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def whole_number(value: Any) -> int | None:
    """A whole number that fits in 62 bits, else None."""
    return value if type(value) is int and -(2**62) < value < 2**62 else None


def pretty(value: Any) -> str:
    """A JSON value to be read by people."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


def sanitize(value: Any, deep: int = 0) -> Any:
    """The same value as JSON can carry it: no NaN, no lone surrogate, no number of a thousand digits, not too deep."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is int:
        return value if -(2**63) <= value < 2**64 else number(value)
    if kind is dict or kind is list:
        if deep >= DEEPEST:
            return "(nested too deep to be shown)"
        if kind is list:
            return [sanitize(each, deep + 1) for each in value]
        return {sanitize(key, deep + 1): sanitize(each, deep + 1) for key, each in value.items()}
    return value
