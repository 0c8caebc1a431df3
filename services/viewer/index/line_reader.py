"""A rollout's line, read by the byte where it begins."""

from __future__ import annotations

from pathlib import Path

from rollyard.services.io.jsonl import lenient
from rollyard.services.io.lines import line_at
from rollyard.services.types import Json
from rollyard.services.viewer.api.untrusted_values import sanitize


def row_at(path: Path, offset: int) -> Json:
    """The line's object; {} where none stands there (any more). Raises OSError."""
    return as_row(line_at(path, offset)) or {}


def as_row(line: bytes) -> Json | None:
    """The object of a line, with nothing in it that could not be written as JSON; None where it holds none."""
    try:
        row = sanitize(lenient(line))
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
