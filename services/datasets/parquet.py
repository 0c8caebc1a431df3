"""Tables: rows of Parquet and Arrow files as lines of JSON. Needs the extra `hub`.

A table has every field in every row: inside `responses_create_params` a null is left out, because there an absent field
and a null are different requests. A text in that column that holds JSON is read as it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any, BinaryIO

import orjson

from rollyard.services.io.optional import load
from rollyard.services.io.strict_json import load_exact

_BATCH = 256
"""Rows in memory at a time: a row may hold a long conversation."""
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_PARAMS = "responses_create_params"


def table_of(head: bytes) -> str:
    """The format's name; empty for bytes that are not a table's."""
    if head.startswith(_PARQUET):
        return "Parquet"
    return "Arrow" if head.startswith((_ARROW_FILE, _ARROW_STREAM)) else ""


def table_lines(file: BinaryIO, head: bytes) -> Iterator[bytes]:
    """A line per row. Raises OperatorError where pyarrow is missing, ValueError for what JSON cannot hold."""
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
            row[_PARAMS] = _unquoted(params)
        line = json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_told)
    except ValueError as error:
        why = "a number is NaN or infinite, which JSON does not have" if "compliant" in str(error) else error
        raise ValueError(f"row {number}: {why}") from error
    return line.encode() + b"\n"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _unquoted(value: str) -> Any:
    """The value of a text that holds JSON. Raises ValueError where it would lose a key or digits."""
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    return load_exact(value.encode())


def _told(value: Any) -> str:
    """A date or time as its ISO text. Raises ValueError for a type that JSON cannot hold exactly."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    raise ValueError(f"JSON has no {type(value).__name__}; make it a text or a number in the table")
