"""Finds the keys of an object that its TypedDict lacks, at any depth that the types describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict


def untyped_keys(value: Any, hint: Any, path: str = "") -> Iterator[str]:
    """Paths of such keys, e.g. `response.output[0].token_trace.way`."""
    if is_typeddict(hint) and isinstance(value, dict):
        hints = get_type_hints(hint)
        for key, inner in value.items():
            if key in hints:
                yield from untyped_keys(inner, hints[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}".lstrip(".")
    elif get_origin(hint) is list and isinstance(value, list):
        for number, inner in enumerate(value):
            yield from untyped_keys(inner, get_args(hint)[0], f"{path}[{number}]")
    else:
        for part in get_args(hint):
            yield from untyped_keys(value, part, path)
