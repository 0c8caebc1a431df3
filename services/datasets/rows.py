"""Rows of a data set's file: read one by one, never held, and told in words when they cannot be played."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from rollyard.services.datasets.data_files import DataFile, lines_of
from rollyard.services.errors import OperatorError
from rollyard.services.io.strict_json import check_exact, load_exact
from rollyard.services.types import Json

ID_KEYS = ("prompt_id", "task_id", "id", "level_id")
"""Keys under which rows name themselves; the first one that is there counts."""
_USUAL_LINE = 4096
_DEEPEST = 230
"""Levels of lists and objects in a row."""
_TOO_DEEP = f" is nested deeper than {_DEEPEST} levels, which cannot be passed on"
_NOT_LINES = {
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "compressed data in compressed data",
    b"\x28\xb5\x2f\xfd": "compressed data in compressed data",
    b"PAR1": "a compressed Parquet file",
}
"""First bytes of what is often taken for a data set's file."""
_KINDS = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list"}


class Row(NamedTuple):
    """A line of a data set."""

    line: int
    """From 1."""
    offset: int
    """Byte where it begins, in what a compressed file or a table holds."""
    value: Json
    problem: str
    """What is wrong with it, to be read after `line 17`; empty when it can be played."""
    mark: int
    """A hash of its bytes, good within this process."""
    text: bytes = b""
    """The value as orjson writes it; empty where there is a problem."""


def rows_of(file: DataFile) -> Iterator[Row]:
    """Every row, blank lines left out, wrong ones too. Raises OperatorError when the file cannot be read."""
    for number, offset, line in _numbered(file):
        yield _row(line, number, offset, hash(line))


def rows_again(file: DataFile, marks: Sequence[int]) -> Iterator[Row]:
    """As `rows_of`, for a file whose first rows were playable and had these marks; those are not checked again.

    Ends with the first row that has another mark, or none: it is not the one that was read, and its value is empty.
    """
    for index, (number, offset, line) in enumerate(_numbered(file)):
        mark = hash(line)
        if index >= len(marks) or mark != marks[index]:
            yield Row(number, offset, {}, " changed", mark)
            return
        yield Row(number, offset, orjson.loads(line.removeprefix(codecs.BOM_UTF8)), "", mark)


def row_at(file: DataFile, offset: int, mark: int) -> Json:
    """The row that begins at a byte; one that `rows_of` found playable. Raises OperatorError when the file changed."""
    try:
        line = _line_at(file, offset)
    except OSError as error:
        raise OperatorError(f"input file {str(file)!r} cannot be read: {error.strerror}") from error
    if hash(line) != mark:
        raise OperatorError(
            f"input file {str(file)!r} changed while in use: the row at byte {offset} is not the one that was read "
            "at the start. Restore the file, then the same command goes on"
        )
    value: Json = orjson.loads(line.removeprefix(codecs.BOM_UTF8))
    return value


def _line_at(file: DataFile, offset: int) -> bytes:
    # Three calls of the kernel: an opened file object costs four times as much, and there are as many as rows.
    opened = os.open(file, os.O_RDONLY)
    try:
        line, size = b"", _USUAL_LINE
        while b"\n" not in line and (piece := os.pread(opened, size, offset + len(line))):
            line, size = line + piece, max(size, len(line) + len(piece))
        return line[: line.find(b"\n") + 1] or line
    finally:
        os.close(opened)


def _numbered(file: DataFile) -> Iterator[tuple[int, int, bytes]]:
    """Lines that are not blank, each with its number from 1 and its offset."""
    offset = 0
    for number, line in enumerate(lines_of(file), 1):
        if not line.isspace():
            yield number, offset, line
        offset += len(line)


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


def id_of_row(row: Json) -> str | None:
    """The id that the row gives itself: a text or a number; other values of these keys are the environment's own.

    Raises ValueError in words for an id that no line of an order file could hold.
    """
    for key in ID_KEYS:
        own = row.get(key)
        if isinstance(own, str | int | float) and not isinstance(own, bool):
            name = str(own)
            if name.splitlines() != [name.strip()]:
                found = "is empty" if not name.strip() else "holds a line break or begins or ends with a space"
                raise ValueError(f"{key} {found} ({name[:40]!r}); expected a text on one line, or no {key} at all")
            return name
    return None


def json_kind(value: Any) -> str:
    """What a value is called in JSON, to be read after `is`."""
    return _KINDS.get(type(value), "an object")


def parsed(line: bytes, number: int) -> Any:
    """The value of a file's line. Raises ValueError, which says what is wrong to be read after `line 17`."""
    return _parsed(line, number)[0]


def _parsed(line: bytes, number: int) -> tuple[Any, bytes]:
    """A line's value, and how orjson writes it."""
    # A mark that editors on Windows put before the first line, and `cat` then before others.
    text = line.removeprefix(codecs.BOM_UTF8).rstrip(b" \t\r\n")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(_why_unreadable(line, number, error)) from error
    try:
        written = orjson.dumps(value)
    except TypeError as error:  # orjson reads 1,024 levels and writes 254
        raise ValueError(_TOO_DEEP) from error
    try:
        check_exact(text, written)
    except ValueError as error:
        raise ValueError(f": {error}") from error
    return value, written


def _row(line: bytes, number: int, offset: int, mark: int) -> Row:
    try:
        value, written = _parsed(line, number)
    except ValueError as error:
        return Row(number, offset, {}, str(error), mark)
    if not isinstance(value, dict):
        return Row(number, offset, {}, f" is {json_kind(value)}; expected an object", mark)
    if problem := _too_deep(written, value) or _problem(value):
        return Row(number, offset, value, problem, mark)
    return Row(number, offset, value, "", mark, written)


def _too_deep(written: bytes, value: Json) -> str:
    """A row that can be read (1,024 levels) but not be put into an object of a server's and be written (254)."""
    if written.count(b"{") + written.count(b"[") < _DEEPEST:
        return ""
    wrapped: Any = value
    for _ in range(254 - _DEEPEST):
        wrapped = [wrapped]
    try:
        orjson.dumps(wrapped)
    except TypeError:
        return _TOO_DEEP
    return ""


def _why_unreadable(line: bytes, number: int, error: orjson.JSONDecodeError) -> str:
    """To be read after `line 17`."""
    if "infinity" in error.msg:
        try:
            load_exact(line.removeprefix(codecs.BOM_UTF8))
        except ValueError as beyond:
            return f": {beyond}"
    return f" is not JSON: {_why_not_json(line, number, error)}"


def _why_not_json(line: bytes, number: int, error: orjson.JSONDecodeError) -> str:
    """In words for whoever made the file: mostly it is another kind of file, or half of one."""
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "the file is UTF-16; expected UTF-8 (iconv -f UTF-16 -t UTF-8)"
    if number == 1 and (inside := next((what for head, what in _NOT_LINES.items() if line.startswith(head)), "")):
        return f"the file holds {inside}; expected JSON Lines: unpack it"
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
        if "failure_kind" in row:
            return " is a failed attempt of a collection (X_failures.jsonl); expected a task"
        found = ", ".join(sorted(row)) or "nothing"
        return f" has {found}; expected responses_create_params with an `input`, a text or a list"
    if isinstance(asked, list):
        for place, item in enumerate(asked):
            if not isinstance(item, dict):
                return f": input[{place}] is {json_kind(item)}; expected a message, an object"
    try:
        if params.get("metadata") is not None:
            with_seed(params["metadata"], 0)
        agent_of(row)
        id_of_row(row)
    except ValueError as error:
        return f": {error}"
    return ""
