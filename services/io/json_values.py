"""Values out of JSON that others wrote: taken as what they should be, or as absent."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

from rollyard.services.types import Json

T = TypeVar("T")

_EMPTY: Json = {}
_KINDS = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list"}


def mapping(value: Any) -> Json:
    """A JSON object, else an empty one, which is shared: do not write to it."""
    return value if isinstance(value, dict) else _EMPTY


def items(value: Any) -> list[Any]:
    """A list, else an empty one."""
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """A string, else ''."""
    return value if isinstance(value, str) else ""


def is_number(value: Any, most: float = sys.float_info.max) -> bool:
    """True for a finite number of at most `most` on either side of 0. JSON's true is not a number."""
    return type(value) in (int, float) and -most <= value <= most


def number(value: Any, absent: T, most: float = sys.float_info.max) -> float | T:
    """A number as `is_number` defines it, else `absent`."""
    # The condition is repeated: a profile calls this ten times a row.
    return float(value) if type(value) in (int, float) and -most <= value <= most else absent


def whole_number(value: Any, *, least: int = 1 - 2**62) -> int | None:
    """A whole number from `least` that fits in 62 bits, else None."""
    return value if type(value) is int and least <= value < 2**62 else None


def json_kind(value: Any) -> str:
    """What a value is called in JSON, to be read after `is`."""
    return _KINDS.get(type(value), "an object")
