"""A rollout's line, read by the byte where it begins."""

from __future__ import annotations

from pathlib import Path

from rollyard.services.metrics.loader.parallel_reader import loads
from rollyard.services.types import Json
from rollyard.services.viewer.api.untrusted_values import sanitize


def line_at(path: Path, offset: int) -> bytes:
    """The bytes of the line that begins at `offset`, without its end. Raises OSError."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline().rstrip(b"\r\n")


def row_at(path: Path, offset: int) -> Json:
    """The line's object; {} where none stands there (any more). Raises OSError."""
    return as_row(line_at(path, offset)) or {}


def as_row(line: bytes) -> Json | None:
    """The object of a line, with nothing in it that could not be written as JSON; None where it holds none."""
    try:
        row = sanitize(loads(line))
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
