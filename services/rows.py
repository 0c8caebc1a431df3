"""Rows of a data set's file: read one by one, never held, and told in words when they cannot be played."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from services.errors import OperatorError
from services.types import Json

_DEEPEST = 230
"""Levels of lists and objects in a row."""
_GZIPPED = b"\x1f\x8b"
_KINDS = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list"}


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
    mark: int
    """A hash of its bytes, good within this process."""


def rows_of(path: Path) -> Iterator[Row]:
    """Every row, blank lines left out, wrong ones too. Raises OperatorError when the file cannot be read."""
    offset = 0
    try:
        # Binary lines end at \n only: U+0085 and U+2028 inside a string are text.
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _row(line, number, offset, hash(line))
                offset += len(line)
    except OSError as error:
        raise OperatorError(f"input file {str(path)!r} cannot be read: {error.strerror}") from error


def row_at(path: Path, offset: int, mark: int) -> Json:
    """The row that begins at a byte; one that `rows_of` found playable. Raises OperatorError when the file changed."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            line = file.readline()
    except OSError as error:
        raise OperatorError(f"input file {str(path)!r} cannot be read: {error.strerror}") from error
    if hash(line) != mark:
        raise OperatorError(
            f"input file {str(path)!r} changed while in use: the row at byte {offset} is not the one that was read "
            "at the start. Restore the file, then the same command goes on"
        )
    value: Json = orjson.loads(line.removeprefix(codecs.BOM_UTF8))
    return value


def with_seed(metadata: Any, seed: int) -> Json:
    """`metadata` with the seed in its extra_body. Raises ValueError in words when there is no room for one.

    The seed travels as NeMo Gym sends it: `metadata.extra_body` is a JSON string that model servers merge into the
    request to the engine, because the Responses API has no `seed` of its own.
    """
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata is {json_kind(metadata)}; expected an object")
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


def json_kind(value: Any) -> str:
    """What a value is called in JSON, to be read after `is`."""
    return _KINDS.get(type(value), "an object")


def parsed(line: bytes, number: int) -> Any:
    """The value of a file's line. Raises ValueError, which says what is wrong to be read after `is not JSON:`."""
    try:
        # A mark that editors on Windows put before the first line, and `cat` then before others.
        return orjson.loads(line.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError as error:
        raise ValueError(_why_unreadable(line, number, error)) from error


def _row(line: bytes, number: int, offset: int, mark: int) -> Row:
    try:
        value = parsed(line, number)
    except ValueError as error:
        return Row(number, offset, {}, f" is not JSON: {error}", mark)
    if not isinstance(value, dict):
        return Row(number, offset, {}, f" is {json_kind(value)}; expected an object", mark)
    return Row(number, offset, value, _too_deep(line, value) or _problem(value), mark)


def _too_deep(line: bytes, value: Json) -> str:
    """A row that can be read (1,024 levels) but not be put into an object of a server's and be written (254)."""
    if line.count(b"{") + line.count(b"[") < _DEEPEST:
        return ""
    wrapped: Any = value
    for _ in range(254 - _DEEPEST):
        wrapped = [wrapped]
    try:
        orjson.dumps(wrapped)
    except TypeError:
        return f" is nested deeper than {_DEEPEST} levels, which cannot be passed on"
    return ""


def _why_unreadable(line: bytes, number: int, error: orjson.JSONDecodeError) -> str:
    """In words for whoever made the file: mostly it is another kind of file, or half of one."""
    if line.startswith(_GZIPPED):
        return "the file is compressed; unpack it with gunzip"
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "the file is UTF-16; expected UTF-8 (iconv -f UTF-16 -t UTF-8)"
    if b"\0" in line:
        return "it holds zero bytes; expected UTF-8 text (a crash leaves such holes, UTF-16 looks so too)"
    try:
        line.decode()
    except UnicodeDecodeError as wrong:
        return f"it is not UTF-8: byte {line[wrong.start]:#x} at {wrong.start + 1}"
    if number == 1 and line.split() in ([b"["], [b"[{"], [b"[", b"{"], [b"{"]):
        return "a row goes on over several lines; expected one row a line (jq -c '.[]' makes that of a list)"
    cut = "" if line.endswith(b"\n") else ", where the file ends: it was cut off"
    return f"{error.msg} at character {error.colno}{cut}"


def _problem(row: Json) -> str:
    params = row.get("responses_create_params")
    asked = params.get("input") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(asked, str | list):
        found = ", ".join(sorted(row)) or "nothing"
        return f" has {found}; expected responses_create_params with an `input`, a text or a list"
    if isinstance(asked, list):
        for place, item in enumerate(asked):
            if not isinstance(item, dict):
                return f": input[{place}] is {json_kind(item)}; expected a message, an object"
    try:
        with_seed(params.get("metadata"), 0)
        agent_of(row)
    except ValueError as error:
        return f": {error}"
    return ""
