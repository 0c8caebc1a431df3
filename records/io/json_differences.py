"""Compares two JSON objects, such as the identities of two collections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollyard.records.types import Json


def differences(before: Json, after: Json, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted key of each value that differs, in sorted order, with both values; None if a key is missing."""
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}", old, new
