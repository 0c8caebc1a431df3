"""Encodes Python values as JSON without pickle, so that the other process can send data but not code.

Values are rebuilt as built-in types. Objects of an answer's own classes become references, whatever their `__eq__`.
"""

from __future__ import annotations

import array
import builtins
import collections
import datetime
import decimal
import fractions
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

MAX_ITEMS = 1_000_000
"""Maximum number of items read from an iterator; a longer iterator counts as infinite."""
_SAFE_DIGITS = 10**300
"""Larger integers are sent as hexadecimal, which takes linear time and has no digit limit."""

Keep = Callable[[Any], int]
Find = Callable[[int], Any]


def encode(value: Any, keep: Keep) -> Any:
    """Encode `value`. Objects that are not plain data are passed to `keep` and sent as the number that it returns."""
    if value is None or isinstance(value, bool | str | float):
        return _scalar(value)
    if isinstance(value, int):
        number = int(value)
        return number if -_SAFE_DIGITS < number < _SAFE_DIGITS else {"int": hex(number)}
    for kind, name, parts in _PLAIN:
        if isinstance(value, kind):
            return {name: [encode(part, keep) for part in parts(value)]}
    if isinstance(value, type) and vars(builtins).get(name := type.__getattribute__(value, "__name__")) is value:
        return {"type": [name]}
    if isinstance(value, Iterator):
        return {"iterator": [encode(part, keep) for part in _bounded(value)]}
    return {"reference": keep(value)}


def decode(encoded: Any, find: Find) -> Any:
    """Decode the result of `encode`. Raises ValueError, TypeError or KeyError for anything else."""
    if not isinstance(encoded, dict):
        if isinstance(encoded, list):
            raise TypeError("a bare list is not an encoded value")
        return encoded
    ((name, parts),) = encoded.items()
    if name == "reference":
        return find(parts)
    if name == "int":
        return int(parts, 16)
    return _BUILD[name]([decode(part, find) for part in parts])


def _scalar(value: Any) -> Any:
    """Convert to the built-in type, bypassing overridden methods."""
    if value is None or isinstance(value, bool):
        return value
    return str.__str__(value) if isinstance(value, str) else float(value)


def _bounded(values: Iterator[Any]) -> list[Any]:
    items = list(islice(values, MAX_ITEMS + 1))
    if len(items) > MAX_ITEMS:
        raise ValueError(f"the iterator has more than {MAX_ITEMS} items")
    return items


def _pairs(mapping: Any) -> list[Any]:
    return [part for pair in mapping.items() for part in pair]


def _to_pairs(parts: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(parts[::2], parts[1::2], strict=True))


def _type(name: str) -> type:
    found = getattr(builtins, name)
    if not isinstance(found, type):
        raise TypeError(f"{name} is not a built-in type")
    return found


_PLAIN: list[tuple[type, str, Callable[[Any], Any]]] = [
    (tuple, "tuple", tuple),
    (list, "list", list),
    (collections.Counter, "Counter", _pairs),
    (collections.OrderedDict, "OrderedDict", _pairs),
    (dict, "dict", _pairs),
    (set, "set", list),
    (frozenset, "frozenset", list),
    (type({}.keys()), "keys", list),
    (type({}.items()), "items", lambda found: [part for pair in found for part in pair]),
    (type({}.values()), "values", list),
    (collections.deque, "deque", list),
    (range, "range", lambda found: (found.start, found.stop, found.step)),
    (slice, "slice", lambda found: (found.start, found.stop, found.step)),
    (array.array, "array", lambda found: (found.typecode, *found)),
    (bytes, "bytes", lambda found: (found.hex(),)),
    (bytearray, "bytearray", lambda found: (found.hex(),)),
    (complex, "complex", lambda found: (found.real, found.imag)),
    (decimal.Decimal, "Decimal", lambda found: (str(found),)),
    (fractions.Fraction, "Fraction", lambda found: (found.numerator, found.denominator)),
    (datetime.datetime, "datetime", lambda found: (found.isoformat(),)),
    (datetime.date, "date", lambda found: (found.isoformat(),)),
    (datetime.time, "time", lambda found: (found.isoformat(),)),
    (datetime.timedelta, "timedelta", lambda found: (found.days, found.seconds, found.microseconds)),
]

_BUILD: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "list": list,
    "Counter": lambda parts: collections.Counter(dict(_to_pairs(parts))),
    "OrderedDict": lambda parts: collections.OrderedDict(_to_pairs(parts)),
    "dict": lambda parts: dict(_to_pairs(parts)),
    "set": set,
    "frozenset": frozenset,
    "keys": lambda parts: dict.fromkeys(parts).keys(),
    "items": lambda parts: dict(_to_pairs(parts)).items(),
    "values": lambda parts: dict(enumerate(parts)).values(),
    "deque": collections.deque,
    "range": lambda parts: range(*parts),
    "slice": lambda parts: slice(*parts),
    "array": lambda parts: array.array(parts[0], parts[1:]),
    "bytes": lambda parts: bytes.fromhex(parts[0]),
    "bytearray": lambda parts: bytearray.fromhex(parts[0]),
    "complex": lambda parts: complex(*parts),
    "Decimal": lambda parts: decimal.Decimal(parts[0]),
    "Fraction": lambda parts: fractions.Fraction(*parts),
    "datetime": lambda parts: datetime.datetime.fromisoformat(parts[0]),
    "date": lambda parts: datetime.date.fromisoformat(parts[0]),
    "time": lambda parts: datetime.time.fromisoformat(parts[0]),
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "iterator": iter,
    "type": lambda parts: _type(parts[0]),
}


_NEVER_RAISED = (AssertionError, StopIteration, StopAsyncIteration)
"""Only tests may raise AssertionError. The other two would end a test's own `map(f, cases)` early."""


class ForeignException(Exception):
    """Represents an exception from the other process that is not built in or must not be raised in this process."""


def describe_exception(error: BaseException) -> list[str]:
    try:
        return [type(error).__name__, str(error)[:2000]]
    except Exception:
        return [type(error).__name__, "(str() failed)"]


def to_exception(name: str, text: str) -> Exception:
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, _NEVER_RAISED):
        try:
            return known(text)
        except TypeError:  # e.g. UnicodeDecodeError takes more arguments
            pass
    return ForeignException(f"{name}: {text}")
