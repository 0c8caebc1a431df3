"""Rows of a data set's file: read one by one, never held, and told in words when they cannot be played."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from services.errors import OperatorError
from services.types import Json


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a data set."""

    line: int
    """From 1."""
    offset: int
    """Byte where it begins."""
    value: Json
    problem: str
    """What is wrong with it, to be read after `line 17`; empty when it can be played."""


def rows_of(path: Path) -> Iterator[Row]:
    """Every row, blank lines left out, wrong ones too. Raises OperatorError when the file cannot be read."""
    offset = 0
    try:
        # Binary lines end at \n only: U+0085 and U+2028 inside a string are text.
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _row(line, number, offset)
                offset += len(line)
    except OSError as error:
        raise OperatorError(f"input file {str(path)!r} cannot be read: {error.strerror}") from error


def row_at(path: Path, offset: int) -> Json:
    """The row that begins at a byte; one that `rows_of` found playable. Raises OperatorError when the file changed."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            row = _row(file.readline(), 0, offset)
    except OSError as error:
        raise OperatorError(f"input file {str(path)!r} cannot be read: {error.strerror}") from error
    if row.problem:
        raise OperatorError(f"input file {str(path)!r} changed while in use: the row at byte {offset}{row.problem}")
    return row.value


def with_seed(metadata: Any, seed: int) -> Json:
    """`metadata` with the seed in its extra_body. Raises ValueError in words when there is no room for one.

    The seed travels as NeMo Gym sends it: `metadata.extra_body` is a JSON string that model servers merge into the
    request to the engine, because the Responses API has no `seed` of its own.
    """
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata is a JSON {type(metadata).__name__}; expected an object")
    text = metadata.get("extra_body") or "{}"
    try:
        extra = orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        extra = None
    if not isinstance(extra, dict):
        raise ValueError(f"metadata.extra_body is {text!r}; expected a string that holds a JSON object")
    return {**metadata, "extra_body": orjson.dumps({**extra, "seed": seed}).decode()}


def agent_of(row: Json) -> str | None:
    """Who plays the row, where it says so itself. Raises ValueError in words."""
    own = row.get("agent_ref") or {}
    if not isinstance(own, dict) or not isinstance(own.get("name", ""), str):
        raise ValueError(f"agent_ref is {own!r}; expected {{name: ...}}")
    return own.get("name") or None


def _row(line: bytes, number: int, offset: int) -> Row:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return Row(number, offset, {}, f" is not JSON: {error}")
    if not isinstance(value, dict):
        return Row(number, offset, {}, f" is a JSON {type(value).__name__}; expected an object")
    return Row(number, offset, value, _problem(value))


def _problem(row: Json) -> str:
    params = row.get("responses_create_params")
    if not isinstance(params, dict) or not isinstance(params.get("input"), str | list):
        found = ", ".join(sorted(row)) or "nothing"
        return f" has {found}; expected responses_create_params with an `input`, a text or a list"
    try:
        with_seed(params.get("metadata"), 0)
        agent_of(row)
    except ValueError as error:
        return f": {error}"
    return ""
