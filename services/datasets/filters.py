"""Filters: select the rows of a dataset by the values of their fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator

from rollyard.records.io.json_values import is_number
from rollyard.records.types import Json

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Range:
    """A range of numbers from `min` to `max`, both inclusive; None leaves that side unbounded."""

    min: float | None = None
    max: float | None = None

    def __str__(self) -> str:
        sides = {"min": self.min, "max": self.max}
        return "{" + ", ".join(f"{side}: {bound:g}" for side, bound in sides.items() if bound is not None) + "}"


def condition(value: Any) -> Range | list[Scalar] | Scalar:
    """Parse a condition from the settings. Raises ValueError, with a readable message, if it is invalid."""
    if value is None or isinstance(value, Scalar | Range):
        return value
    if isinstance(value, list) and value and all(item is None or isinstance(item, Scalar) for item in value):
        return value
    bounds = {side: bound for side, bound in value.items() if bound is not None} if isinstance(value, dict) else {}
    if bounds and bounds.keys() <= {"min", "max"} and all(is_number(bound, math.inf) for bound in bounds.values()):
        numeric_range = Range(**bounds)
        if numeric_range.min is not None and numeric_range.max is not None and numeric_range.min > numeric_range.max:
            raise ValueError(f"{numeric_range} is empty: min is greater than max")
        return numeric_range
    raise ValueError("expected a value, a list of values, or {min: 3, max: 8} with min, max or both")


Condition = Annotated[Range | list[Scalar] | Scalar, PlainValidator(condition)]
"""A range, a list of accepted values, or a single value."""


def matches(row: Json, where: Mapping[str, Condition]) -> bool:
    """Return whether the row satisfies all conditions. Dots separate nested keys; a missing key matches only null."""
    return all(_satisfies(_value(row, key), condition) for key, condition in where.items())


def describe(where: Mapping[str, Condition]) -> str:
    """Return the conditions as they are written in the settings."""
    return ", ".join(f"{key}: {condition}" for key, condition in where.items())


def _value(row: Json, key: str) -> Any:
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _satisfies(value: Any, condition: Condition) -> bool:
    if isinstance(condition, Range):
        if not is_number(value):
            return False
        return (condition.min is None or value >= condition.min) and (condition.max is None or value <= condition.max)
    return any(_same(value, expected) for expected in (condition if isinstance(condition, list) else [condition]))


def _same(value: Any, expected: Scalar) -> bool:
    # In JSON, true is not equal to 1, whereas in Python it is.
    return isinstance(value, bool) == isinstance(expected, bool) and value == expected
