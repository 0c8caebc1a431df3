"""Where: which rows of a data set are used, by what they say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from services.types import Json

Scalar = str | int | float | bool | None


class Range(BaseModel):
    """A number from `min` to `max`, both included; a side left out is open."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Range:
        if self.min is None and self.max is None:
            raise ValueError("a range needs min, max or both")
        return self


Condition = Range | list[Scalar] | Scalar
"""A range, one of several values, or one value."""


def matches(row: Json, where: Mapping[str, Condition]) -> bool:
    """Whether all conditions hold. A dotted key goes into objects; a key that is not there holds for null only."""
    return all(_holds(_value(row, key), condition) for key, condition in where.items())


def _value(row: Json, key: str) -> Any:
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _holds(value: Any, condition: Condition) -> bool:
    if isinstance(condition, Range):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (condition.min is None or value >= condition.min) and (condition.max is None or value <= condition.max)
    return any(_same(value, wanted) for wanted in (condition if isinstance(condition, list) else [condition]))


def _same(value: Any, wanted: Scalar) -> bool:
    # JSON's true is not 1, though Python's is.
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted
