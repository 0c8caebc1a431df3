"""Makes rows from the columns of a published table: renames fields, and fills a prompt template with them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, cast

import orjson

from rollyard.records.datasets.compression import COMPRESSED
from rollyard.records.errors import did_you_mean
from rollyard.records.types import Json

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
DELIMITED = tuple(_DELIMITERS)
"""Extensions of files with delimited text. Their first bytes are those of any text, so the name tells the format."""
_BRACES = re.compile(r"\{\{|\}\}|\{([^\W\d]\w*)\}")
_NOT_FIELDS = ("agent_ref", "responses_create_params")


def delimiter_of(name: str) -> str:
    """Return the delimiter of a CSV or TSV file, which may be compressed; an empty string for other files."""
    name = name.lower()
    name = next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)
    return next((delimiter for ending, delimiter in _DELIMITERS.items() if name.endswith(ending)), "")


def delimited_lines(file: BinaryIO | io.BufferedIOBase, delimiter: str, max_field: int) -> Iterator[bytes]:
    """Yield one line of JSON per row. All values are strings. Raises ValueError if the text is damaged."""
    csv.field_size_limit(max_field)
    text = io.TextIOWrapper(cast(BinaryIO, file), encoding="utf-8-sig", newline="")
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    number = 0
    try:
        header = [name.strip() for name in next(rows, [])]
        if len(set(header)) < len(header) or "" in header:
            raise ValueError(f"the columns need different names in the first line (found: {', '.join(header)})")
        for number, row in enumerate(filter(None, rows), 1):
            if len(row) != len(header):
                raise ValueError(
                    f"row {number} has {len(row)} values, and the first line names {len(header)} columns "
                    f"({', '.join(header)}); put values that contain {delimiter!r} or line breaks in double quotes"
                )
            yield orjson.dumps(dict(zip(header, row, strict=True))) + b"\n"
    except csv.Error as error:
        raise ValueError(f"row {number + 1}: {error}") from error
    finally:
        text.detach()


def with_columns(row: Json, columns: Mapping[str, str], prompt: str | None) -> Json:
    """Return the row with the columns renamed and the prompt added. `columns`: field -> name of the column.

    Raises ValueError if the row lacks a column, or has one with the name of a field.
    """
    for field, column in columns.items():
        if column not in row:
            raise ValueError(f"there is no column {column!r}{did_you_mean(column, row)} (columns: {', '.join(row)})")
        if field in row and field not in columns.values():
            raise ValueError(f"the row has a field {field!r} already, so the column {column!r} cannot be renamed to it")
    kept = {key: value for key, value in row.items() if key not in columns.values()}
    made: Json = {**kept, **{field: row[column] for field, column in columns.items()}}
    if prompt is None:
        return made
    try:
        message = {"role": "user", "content": fill(prompt, made)}
    except ValueError as error:
        raise ValueError(f"the prompt {error}") from error
    params = made.get("responses_create_params") or {}
    return {**made, "responses_create_params": {**params, "input": [message]}}


def fill(template: str, row: Mapping[str, Any]) -> str:
    r"""Replace each `{name}` in the template with the row's field of that name. Other values than strings become JSON.

    `{{` and `}}` become a single brace. Any other brace is kept, so `\boxed{}` needs no escaping. Inserted values are
    not expanded again. Raises ValueError if a field is missing or null.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return found[0][0]
        given = row.get(name)
        if given is None:
            state = "null" if name in row else "missing"
            own = ", ".join(key for key in sorted(row) if key not in _NOT_FIELDS and key[:4] != "_ng_") or "no fields"
            raise ValueError(f"needs the field {name!r}, which is {state}; the row has {own}")
        return given if isinstance(given, str) else orjson.dumps(given).decode()

    return _BRACES.sub(value, template)
