"""Reads values from untrusted JSON. A value of an unexpected type is treated as absent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TypeVar

from rollyard.records.types import Json

T = TypeVar("T")

_EMPTY: Json = {}
_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
}


def mapping(value: Any) -> Json:
    """Return `value` if it is a JSON object, else a shared empty dict that must not be modified."""
    return value if isinstance(value, dict) else _EMPTY


def items(value: Any) -> list[Any]:
    """Return `value` if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """Return `value` if it is a string, else ''."""
    return value if isinstance(value, str) else ""


def is_number(value: Any, maximum: float = sys.float_info.max) -> bool:
    """Return whether `value` is a finite number in [-maximum, maximum]. Booleans are not numbers."""
    return type(value) in (int, float) and -maximum <= value <= maximum


def number(value: Any, absent: T, maximum: float = sys.float_info.max) -> float | T:
    """Return `value` if `is_number` accepts it, else `absent`."""
    # The condition of is_number is inlined because a profile calls this ten times per row.
    return float(value) if type(value) in (int, float) and -maximum <= value <= maximum else absent


def whole_number(value: Any, *, least: int = 1 - 2**62) -> int | None:
    """Return `value` if it is an integer from `least` to 2**62 - 1, else None."""
    return value if type(value) is int and least <= value < 2**62 else None


def json_kind(value: Any) -> str:
    """Return the name of the value's JSON type, with an article."""
    return _KINDS.get(type(value), "an object")


def differences(before: Json, after: Json, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted key of each value that differs, in sorted order, with both values; None if a key is missing."""
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}", old, new
