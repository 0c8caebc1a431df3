"""Reads fields of the rows at given places of a rollout file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollyard.analysis.metrics.loader.columns import Ints
from rollyard.records.expressions.column import Column, column_of
from rollyard.records.expressions.field_path import FieldPath
from rollyard.records.io.jsonl import lenient
from rollyard.records.io.lines import line_at
from rollyard.records.rollouts.tokens.derived_fields import reader_of
from rollyard.records.types import Json

_MAX_TEXT = 20_000
"""Characters that are kept of a string. Without a limit, a field with long texts would fill the memory."""


def read_fields(path: Path, offsets: Ints, paths: Iterable[FieldPath]) -> dict[FieldPath, Column]:
    """Return the fields of the rows that begin at the byte `offsets`, one value each; None where a row has none.

    Raises OSError if the file cannot be read.
    """
    wanted = list(dict.fromkeys(paths))
    values: list[list[Any]] = [[None] * len(offsets) for _ in wanted]
    readers = [reader_of(field) for field in wanted]
    order = offsets.argsort(kind="stable").tolist()  # in the order of the file, which is faster to read
    for index in order if wanted else ():
        row = _row(path, int(offsets[index]))
        for kept, read in zip(values, readers, strict=True):
            kept[index] = bounded(read(row))
    return {field: column_of(kept) for field, kept in zip(wanted, values, strict=True)}


def _row(path: Path, offset: int) -> Json:
    try:
        row = lenient(line_at(path, offset))
    except ValueError:  # the file has changed since it was indexed
        return {}
    return row if isinstance(row, dict) else {}


def bounded(value: Any) -> Any:
    """Return the value of a field as expressions see it: long strings are cut."""
    return value[:_MAX_TEXT] if isinstance(value, str) else value
