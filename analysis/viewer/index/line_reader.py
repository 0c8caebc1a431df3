"""Reads the line of a rollout at a byte offset."""

from __future__ import annotations

from pathlib import Path

from rollyard.analysis.viewer.api.untrusted_values import sanitize
from rollyard.records.io.jsonl import lenient
from rollyard.records.io.lines import line_at
from rollyard.records.types import Json


def row_at(path: Path, offset: int) -> Json:
    """Return the object on the line, or {} if the line is not an object, which can happen if the file was changed.

    Raises OSError if the file cannot be read.
    """
    return as_row(line_at(path, offset)) or {}


def as_row(line: bytes) -> Json | None:
    """Parse a line and sanitize it for JSON; None if it is not an object."""
    try:
        row = sanitize(lenient(line))
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
