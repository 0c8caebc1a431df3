"""The difference between two JSON values as a JSON Patch (RFC 6902) of the operations add, remove and replace."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from rollyard.records.types import Json


def patch_between(before: Any, after: Any, path: str = "") -> Iterator[Json]:
    """Yield the operations that make `after` of `before`. A list of another length, or of numbers, is replaced."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            place = f"{path}/{_escaped(key)}"
            if key not in after:
                yield {"op": "remove", "path": place}
            elif key in before:
                yield from patch_between(before[key], after[key], place)
            else:
                yield {"op": "add", "path": place, "value": after[key]}
    elif _are_lists_of_containers(before, after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from patch_between(old, new, f"{path}/{index}")
    elif not is_same(before, after):
        yield {"op": "replace", "path": path, "value": after}


def patched(value: Any, patch: Sequence[Any]) -> Any:
    """Return a copy of `value` with the operations applied.

    Raises ValueError for an operation that does not fit the value. The message says which one.
    """
    whole = [copy.deepcopy(value)]
    for operation in patch:
        try:
            kind, path = operation["op"], operation["path"]
            *parents, last = ["0", *(_unescaped(key) for key in path.split("/")[1:])]
            target: Any = whole
            for key in parents:
                target = target[int(key)] if isinstance(target, list) else target[key]
            place: Any = int(last) if isinstance(target, list) else last
            if kind == "remove":
                del target[place]
            elif kind == "replace":
                target[place]
                target[place] = operation["value"]
            elif kind == "add" and isinstance(target, dict):
                target[place] = operation["value"]
            else:
                raise ValueError
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise ValueError(f"the operation {str(operation)[:200]} does not fit the value that it changes") from None
    return whole[0]


def is_same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are the same text. Unlike in Python, 1, 1.0 and true differ."""
    return bool(one == other) and _has_same_types(one, other)


def _has_same_types(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return all(_has_same_types(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        kinds = set(map(type, one))
        if len(kinds) <= 1 and not kinds & {dict, list}:  # quickly: lists of token ids are long
            return kinds == set(map(type, other))
        return all(map(_has_same_types, one, other))
    return True


def _are_lists_of_containers(before: Any, after: Any) -> bool:
    if not (isinstance(before, list) and isinstance(after, list) and len(before) == len(after)):
        return False
    return all(isinstance(each, dict | list) for each in before)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescaped(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")
