"""Arguments: values that no tool should have to expect, whatever its signature says."""

from __future__ import annotations

import json
import types
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator

MAX_DEPTH = 64
"""Nesting that a tool may be given; serializers and recursive functions give up somewhat above."""
MAX_INTEGER = 2**63 - 1
"""What JSON, databases and numpy agree on."""


def check_values(value: Any, depth: int = 0) -> None:
    """Raises ValueError for parsed JSON that is nested deeper than any tool needs."""
    if isinstance(value, dict | list):
        if depth == MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        for inner in value.values() if isinstance(value, dict) else value:
            check_values(inner, depth + 1)


def exact(annotation: Any) -> Any:
    """The annotation, whose numbers take no truth values and no integers beyond 64 bits."""
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
    if origin is Annotated:
        return Annotated[(exact(inner[0]), *annotation.__metadata__)]
    if origin in (list, dict, tuple, set, frozenset):
        return origin[tuple(part if part is ... else exact(part) for part in inner)]
    return annotation


def no_bool(value: Any) -> Any:
    """Raises ValueError for true and false, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"found {str(value).lower()}, a number is expected")
    return value


def only_number(value: Any) -> Any:
    """Raises ValueError for truth values and for strings, which pydantic reads as numbers."""
    if isinstance(value, str):
        raise ValueError(f"found {json.dumps(value[:40])}, a number is expected")
    return no_bool(value)


def _bounded(value: int) -> int:
    if not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        raise ValueError("the integer is beyond 64 bits")
    return value


Integer = Annotated[int, BeforeValidator(only_number)]
"""A whole number written as one, for a row or a tool that wants no other: `2` or `2.0`, not `true` or `"2"`."""
