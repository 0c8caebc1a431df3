"""Encodes the values that an environment returns as JSON, including values that JSON does not support.

A verdict or a turn may contain values that were parsed from the model's message, such as integers beyond 64 bits, lone
surrogates, or very deep nesting. These are replaced, because an error would give the policy a second try. Values that
only the environment's code can have created, such as a set, raise an error with the field's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from rollyard.resources_servers.argument_checks import MAX_DEPTH, MAX_INTEGER


def encoded(fields: Mapping[str, Any], source: str) -> bytes:
    """Return the fields as JSON. Raises TypeError with the name of a field that cannot be encoded.

    `source` is the start of the error message, such as `verify returned a Verdict`.
    """
    try:
        return orjson.dumps(fields)
    except TypeError:
        made = {name: storable(value) for name, value in fields.items()}
        for name, value in made.items():
            try:
                orjson.dumps(value)
            except TypeError as error:
                found = f"{name}={value!r:.100} ({type(value).__name__})"
                raise TypeError(f"{source} with {found}, which is not JSON: {error}") from error
        return orjson.dumps(made)


def storable(value: Any, depth: int = 0) -> Any:
    """Return the value without integers, strings and nesting that cannot be encoded as JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        return hex(value)  # in decimal, the conversion takes quadratic time and Python refuses it
    if isinstance(value, dict | list | tuple):
        if depth == MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels"
        if isinstance(value, dict):
            return {storable(name): storable(inner, depth + 1) for name, inner in value.items()}
        return [storable(inner, depth + 1) for inner in value]
    return value
