"""Moves the constraints of a union to its members: `Annotated[int | None, Field(ge=1)]` bounds the integer.

If a constraint stayed on the union, pydantic would write `ge` into the JSON schema, which has no such keyword. For
`int | str`, it would also compare strings with a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Annotated, Any, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

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
