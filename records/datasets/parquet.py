"""Reads the rows of Parquet and Arrow files as lines of JSON. Requires the `hub` extra.

Every row of a table has every field. Nulls inside `responses_create_params` are dropped, because a null parameter does
not mean the same as an absent one. If that column contains JSON strings, they are parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any, BinaryIO

import orjson

from rollyard.records.io.optional import load
from rollyard.records.io.strict_json import load_exact

_BATCH = 256
"""Maximum number of rows in memory at a time. It is low because a row may contain a long conversation."""
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_PARAMS = "responses_create_params"


def table_of(head: bytes) -> str:
    """Return the name of the table format, or an empty string if the bytes are not the start of a table."""
    if head.startswith(_PARQUET):
        return "Parquet"
    return "Arrow" if head.startswith((_ARROW_FILE, _ARROW_STREAM)) else ""


def table_lines(file: BinaryIO, head: bytes) -> Iterator[bytes]:
    """Yield one line per row.

    Raises OperatorError if pyarrow is missing, ValueError if the table is damaged or JSON cannot represent a value.
    """
    number = 0
    try:
        for batch in _batches(file, head):
            for row in batch.to_pylist():
                number += 1
                yield _line(row, number)
    except load("pyarrow", "hub", "reading tables").ArrowException as error:
        raise ValueError(str(error)) from error


def _batches(file: BinaryIO, head: bytes) -> Iterator[Any]:
    if head.startswith(_PARQUET):
        with load("pyarrow.parquet", "hub", "reading Parquet files").ParquetFile(file) as table:
            yield from table.iter_batches(_BATCH)
        return
    ipc = load("pyarrow.ipc", "hub", "reading Arrow files")
    if head.startswith(_ARROW_FILE):
        with ipc.open_file(file) as table:
            for number in range(table.num_record_batches):
                yield from _pieces(table.get_batch(number))
    else:
        with ipc.open_stream(file) as stream:
            for batch in stream:
                yield from _pieces(batch)


def _pieces(batch: Any) -> Iterator[Any]:
    for start in range(0, batch.num_rows, _BATCH):
        yield batch.slice(start, _BATCH)


def _line(row: dict[str, Any], number: int) -> bytes:
    try:
        params = row.get(_PARAMS)
        if isinstance(params, dict):
            row[_PARAMS] = _without_nulls(params)
        elif isinstance(params, str):
            row[_PARAMS] = _parse_json_text(params)
        line = json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_encode_temporal)
    except ValueError as error:
        why = "a number is NaN or infinite, which JSON cannot represent" if "compliant" in str(error) else error
        raise ValueError(f"row {number}: {why}") from error
    return line.encode() + b"\n"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _parse_json_text(value: str) -> Any:
    """Parse a string that contains JSON; return any other string unchanged.

    Raises ValueError if parsing would drop a duplicate key or lose digits of a number.
    """
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    return load_exact(value.encode())


def _encode_temporal(value: Any) -> str:
    """Encode a date or time in ISO format. Raises ValueError for a type that JSON cannot represent exactly."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    raise ValueError(f"JSON cannot represent a {type(value).__name__}; convert the column to strings or numbers")
