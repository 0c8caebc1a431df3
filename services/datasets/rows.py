"""Rows of a data set's file: read one by one, never held, and told in words when they cannot be played."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from rollyard.services.datasets.data_files import DataFile, lines_of
from rollyard.services.errors import OperatorError, RollyardError
from rollyard.services.io.json_values import json_kind
from rollyard.services.io.jsonl import BadLine, ParsedLine, hand_over, iter_jsonl, lenient, refuse
from rollyard.services.io.lines import line_at, with_offsets
from rollyard.services.io.strict_json import DEEPEST, TOO_DEEP, ExactParser
from rollyard.services.types import Json

ID_KEYS = ("prompt_id", "task_id", "id", "level_id")
"""Keys under which rows name themselves; the first one that is there counts."""


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


_made = tuple.__new__  # half the time of Row(...)


def rows_of(file: DataFile) -> Iterator[Row]:
    """Every row, blank lines left out, wrong ones too. Raises OperatorError when the file cannot be read."""
    parse = ExactParser()
    for found in iter_jsonl(with_offsets(lines_of(file)), hand_over, parse=parse):
        mark = hash(found.line)
        if isinstance(found, BadLine):
            yield Row(found.number, found.offset, {}, found.problem, mark)
        elif problem := _too_deep(parse.written, found.value) or _problem(found.value):
            yield Row(found.number, found.offset, found.value, problem, mark)
        else:
            yield _made(Row, (found.number, found.offset, found.value, "", mark, parse.written))


def rows_again(file: DataFile, marks: Sequence[int]) -> Iterator[Row]:
    """As `rows_of`, for a file whose first rows were playable and had these marks; those are not checked again.

    Ends with the first row that has another mark, or none: it is not the one that was read, and its value is empty.
    """
    for index, found in enumerate(iter_jsonl(with_offsets(lines_of(file)), hand_over)):
        mark = hash(found.line)
        if index >= len(marks) or mark != marks[index] or isinstance(found, BadLine):
            yield Row(found.number, found.offset, {}, " changed", mark)
            return
        yield _made(Row, (found.number, found.offset, found.value, "", mark, b""))


def row_at(file: DataFile, offset: int, mark: int) -> Json:
    """The row that begins at a byte; one that `rows_of` found playable. Raises OperatorError when the file changed."""
    try:
        line = line_at(file, offset)
    except OSError as error:
        raise OperatorError(f"input file {str(file)!r} cannot be read: {error.strerror}") from error
    if hash(line) != mark:
        raise OperatorError(
            f"input file {str(file)!r} changed while in use: the row at byte {offset} is not the one that was read "
            "at the start. Restore the file, then the same command goes on"
        )
    value: Json = lenient(line)
    return value


def exact_objects(file: DataFile, error: type[RollyardError] = OperatorError) -> Iterator[ParsedLine]:
    """Every object of a data file, whether it can be played or not. Raises `error` naming a line that holds none,
    OperatorError when the file cannot be read.
    """
    return iter_jsonl(with_offsets(lines_of(file)), refuse(file, error=error), parse=ExactParser())


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


def _too_deep(written: bytes, value: Json) -> str:
    """A row that can be read (1,024 levels) but not be put into an object of a server's and be written (254)."""
    if written.count(b"{") + written.count(b"[") < DEEPEST:
        return ""
    wrapped: Any = value
    for _ in range(254 - DEEPEST):
        wrapped = [wrapped]
    try:
        orjson.dumps(wrapped)
    except TypeError:
        return f": {TOO_DEEP}"
    return ""


def _asks_nothing(row: Json) -> str:
    """What is wrong with a row without responses_create_params, which an environment may play if it has a template."""
    if "responses_create_params" in row:
        return ""
    if "failure_kind" in row:
        return " is a failed attempt of a collection (X_failures.jsonl); expected a task"
    if not row or any(isinstance(row.get(key), list) for key in ("messages", "input")):
        return (
            f" has {_found(row)}; expected responses_create_params with an `input`, a text or a list, or fields for "
            "the user_template of an environment"
        )
    return ""


def _found(row: Json) -> str:
    return ", ".join(sorted(row)) or "nothing"


def _problem(row: Json) -> str:
    params = row.get("responses_create_params", {})
    asked = params.get("input") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(asked, str | list | None):
        return f" has {_found(row)}; expected responses_create_params with an `input`, a text or a list"
    if problem := _asks_nothing(row):
        return problem
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
