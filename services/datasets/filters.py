"""Where: which rows of a data set are used, by what they say of themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator

from rollyard.services.io.json_values import is_number
from rollyard.services.types import Json

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `min` to `max`, both included; a side left out is open."""

    min: float | None = None
    max: float | None = None

    def __str__(self) -> str:
        sides = {"min": self.min, "max": self.max}
        return "{" + ", ".join(f"{side}: {end:g}" for side, end in sides.items() if end is not None) + "}"


def condition(value: Any) -> Range | list[Scalar] | Scalar:
    """What stands in settings as a condition. Raises ValueError in words."""
    if value is None or isinstance(value, Scalar | Range):
        return value
    if isinstance(value, list) and value and all(one is None or isinstance(one, Scalar) for one in value):
        return value
    ends = {side: end for side, end in value.items() if end is not None} if isinstance(value, dict) else {}
    if ends and ends.keys() <= {"min", "max"} and all(is_number(end, math.inf) for end in ends.values()):
        found = Range(**ends)
        if found.min is not None and found.max is not None and found.min > found.max:
            raise ValueError(f"no number lies in {found}: min is above max")
        return found
    raise ValueError("expected a value, a list of values, or {min: 3, max: 8} with min, max or both")


Condition = Annotated[Range | list[Scalar] | Scalar, PlainValidator(condition)]
"""A range, one of several values, or one value."""


def matches(row: Json, where: Mapping[str, Condition]) -> bool:
    """Whether all conditions hold. A dotted key goes into objects; a key that is not there holds for null only."""
    return all(_holds(_value(row, key), condition) for key, condition in where.items())


def describe(where: Mapping[str, Condition]) -> str:
    """The conditions as they are written in settings."""
    return ", ".join(f"{key}: {condition}" for key, condition in where.items())


def _value(row: Json, key: str) -> Any:
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _holds(value: Any, condition: Condition) -> bool:
    if isinstance(condition, Range):
        if not is_number(value):
            return False
        return (condition.min is None or value >= condition.min) and (condition.max is None or value <= condition.max)
    return any(_same(value, wanted) for wanted in (condition if isinstance(condition, list) else [condition]))


def _same(value: Any, wanted: Scalar) -> bool:
    # JSON's true is not 1, though Python's is.
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted
