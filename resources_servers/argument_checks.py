"""Rejects argument values that no tool should have to handle, regardless of its signature."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Sequence
from copy import copy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import AfterValidator, BeforeValidator
from pydantic.fields import FieldInfo

MAX_DEPTH = 64
"""Maximum nesting depth of arguments. Serializers and recursive functions fail at depths that are not much greater."""
MAX_INTEGER = 2**63 - 1
"""The largest integer that JSON parsers, databases and numpy all support."""


def check_values(value: Any, depth: int = 0) -> None:
    """Raises ValueError if the parsed JSON is nested deeper than MAX_DEPTH."""
    if isinstance(value, dict | list):
        if depth == MAX_DEPTH:
            raise ValueError(f"the JSON is nested deeper than {MAX_DEPTH} levels")
        for inner in value.values() if isinstance(value, dict) else value:
            check_values(inner, depth + 1)


def exact(annotation: Any) -> Any:
    """Return the annotation with its numbers made strict: they reject booleans, and integers that exceed 64 bits."""
    if annotation is int:
        return Annotated[int, BeforeValidator(no_bool), AfterValidator(_bounded)]
    if annotation is float:
        return Annotated[float, BeforeValidator(no_bool)]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        plain = any(isinstance(value, bool) for value in inner)
        return annotation if plain else Annotated[annotation, BeforeValidator(no_bool)]
    if origin in (Union, types.UnionType):
        return reduce(or_, (exact(part) for part in inner))
    if origin is Annotated and get_origin(inner[0]) in (Union, types.UnionType):
        union = distributed(get_args(inner[0]), annotation.__metadata__)
        if get_origin(union) is not Annotated:
            return exact(union)
        return Annotated[(exact(get_args(union)[0]), *union.__metadata__)]
    if origin is Annotated:
        made = exact(inner[0])
        base, *own = (get_args(made)[0], *made.__metadata__) if get_origin(made) is Annotated else (made,)
        # The author's constraints come first: pydantic emits `minimum` only for constraints directly after the type.
        return Annotated[(base, *annotation.__metadata__, *own)]
    if origin in (list, dict, tuple, set, frozenset):
        return origin[tuple(part if part is ... else exact(part) for part in inner)]
    return annotation


def no_bool(value: Any) -> Any:
    """Raises ValueError for true and false, which Python treats as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"found {str(value).lower()}, expected a number")
    return value


def only_number(value: Any) -> Any:
    """Raises ValueError for booleans and for strings, which pydantic would parse as numbers."""
    if isinstance(value, str):
        raise ValueError(f"found {json.dumps(value[:40])}, expected a number")
    return no_bool(value)


def _bounded(value: int) -> int:
    if not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        raise ValueError("the integer exceeds 64 bits")
    return value


Integer = Annotated[int, BeforeValidator(only_number)]
"""A strict integer for a row or a tool: accepts `2` and `2.0`, rejects `true` and `"2"`."""


# Moves the constraints of a union to its members: `Annotated[int | None, Field(ge=1)]` bounds the integer.

_KEYS = frozenset({"gt", "ge", "lt", "le", "multiple_of", "allow_inf_nan", "min_length", "max_length", "pattern"})
_NUMBER_MARKS = (
    annotated_types.Gt,
    annotated_types.Ge,
    annotated_types.Lt,
    annotated_types.Le,
    annotated_types.MultipleOf,
    annotated_types.Interval,
)
_SIZE_MARKS = (annotated_types.MinLen, annotated_types.MaxLen, annotated_types.Len)
_COMPARABLE = (int, float, Decimal, date, datetime, time, timedelta)
_SIZED = (str, bytes, list, dict, tuple, set, frozenset)


def distributed(members: Sequence[Any], metadata: Iterable[Any]) -> Any:
    """Return the union with each constraint moved to the members to which it applies. The rest stays on the union."""
    numbers, sizes, rest = _sorted(metadata)
    # A constraint that applies to no member stays where the author has put it.
    for marks, fits in ((numbers, _is_number), (sizes, _is_sized)):
        rest += [] if any(map(fits, members)) else marks
    made = [_with(member, numbers if _is_number(member) else sizes if _is_sized(member) else []) for member in members]
    union = reduce(or_, made)
    return Annotated[(union, *rest)] if rest else union


def _sorted(metadata: Iterable[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the constraints for numbers, those for strings and containers, and the rest, such as descriptions."""
    numbers: list[Any] = []
    sizes: list[Any] = []
    rest: list[Any] = []
    for mark in metadata:
        if isinstance(mark, FieldInfo):
            inner = _sorted(mark.metadata)
            described = copy(mark)
            described.metadata = inner[2]
            described._attributes_set = {key: value for key, value in mark._attributes_set.items() if key not in _KEYS}
            numbers += inner[0]
            sizes += inner[1]
            rest.append(described)
        elif isinstance(mark, _NUMBER_MARKS) or hasattr(mark, "allow_inf_nan"):
            numbers.append(mark)
        elif isinstance(mark, _SIZE_MARKS) or hasattr(mark, "pattern"):
            sizes.append(mark)
        else:
            rest.append(mark)
    return numbers, sizes, rest


def _with(member: Any, marks: Sequence[Any]) -> Any:
    return Annotated[(member, *marks)] if marks else member


def _plain(member: Any) -> Any:
    return get_args(member)[0] if get_origin(member) is Annotated else member


def _is_number(member: Any) -> bool:
    return _plain(member) in _COMPARABLE


def _is_sized(member: Any) -> bool:
    plain = _plain(member)
    return (get_origin(plain) or plain) in _SIZED
