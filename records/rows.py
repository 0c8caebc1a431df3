"""Reads the rows of a dataset file one by one, and explains what is wrong with each invalid row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from rollyard.records.data_files import DataFile, lines_of
from rollyard.records.errors import OperatorError, RollyardError
from rollyard.records.jsonl import BadLine, ParsedLine, hand_over, iter_jsonl, lenient, line_at, refuse, with_offsets
from rollyard.records.strict_json import MAX_DEPTH, TOO_DEEP, ExactParser
from rollyard.records.types import Json, items, json_kind, mapping

ID_KEYS = ("prompt_id", "task_id", "id", "level_id")
"""Keys that may contain a row's id. The first one that is present is used."""


class Row(NamedTuple):
    line: int
    offset: int
    """Byte offset in the (decompressed) content."""
    value: Json
    problem: str
    """What is wrong with the row, to be appended to `line 17`; empty if the row is a valid task."""
    line_hash: int
    text: bytes = b""
    """The value encoded by orjson; empty if the row is invalid or was not validated."""


_new_row = tuple.__new__  # takes half the time of Row(...)


def rows_of(file: DataFile) -> Iterator[Row]:
    """Yield every row, including invalid ones. Blank lines are skipped.

    Raises OperatorError if the file cannot be read.
    """
    parse = ExactParser()
    for found in iter_jsonl(with_offsets(lines_of(file)), hand_over, parse=parse):
        line_hash = hash(found.line)
        if isinstance(found, BadLine):
            yield Row(found.number, found.offset, {}, found.problem, line_hash)
        elif problem := _too_deep(parse.written, found.value) or _problem(found.value):
            yield Row(found.number, found.offset, found.value, problem, line_hash)
        else:
            yield _new_row(Row, (found.number, found.offset, found.value, "", line_hash, parse.written))


def valid_rows(file: DataFile) -> Iterator[Json]:
    """Yield the rows of a file. Raises OperatorError for an invalid row."""
    for found in rows_of(file):
        if found.problem:
            raise OperatorError(f"{file}: line {found.line}{found.problem}")
        yield found.value


def rows_again(file: DataFile, line_hashes: Sequence[int]) -> Iterator[Row]:
    """Yield the rows of a file again without validating them. `line_hashes`: the hashes of its lines when it was valid.

    The first row whose hash differs, and any additional row, has the problem " changed" and ends the iteration.
    """
    for index, found in enumerate(iter_jsonl(with_offsets(lines_of(file)), hand_over)):
        line_hash = hash(found.line)
        if index >= len(line_hashes) or line_hash != line_hashes[index] or isinstance(found, BadLine):
            yield Row(found.number, found.offset, {}, " changed", line_hash)
            return
        yield _new_row(Row, (found.number, found.offset, found.value, "", line_hash, b""))


def row_at(file: DataFile, offset: int, line_hash: int) -> Json:
    """Return a row that `rows_of` found at this byte offset. Raises OperatorError if it has changed since then."""
    try:
        line = line_at(file, offset)
    except OSError as error:
        raise OperatorError(f"input file {str(file)!r} cannot be read: {error.strerror}") from error
    if hash(line) != line_hash:
        raise OperatorError(
            f"input file {str(file)!r} changed while in use: the row at byte {offset} differs from the one read "
            "at the start. Restore the file, then repeat the command to continue"
        )
    value: Json = lenient(line)
    return value


def exact_objects(file: DataFile, error: type[RollyardError] = OperatorError) -> Iterator[ParsedLine]:
    """Yield every JSON object in a data file, whether or not it is a valid task.

    Raises `error` if a line is not an object, OperatorError if the file cannot be read.
    """
    return iter_jsonl(with_offsets(lines_of(file)), refuse(file, error=error), parse=ExactParser())


def with_seed(metadata: Any, seed: int) -> Json:
    """Return `metadata` with the seed in its extra_body. Raises ValueError, with a readable message, if it is invalid.

    The seed is sent in the same way as in NeMo Gym: `metadata.extra_body` is a JSON string that model servers merge
    into the request to the engine, because the Responses API has no `seed` parameter.
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
        raise ValueError(f"metadata.extra_body is {text!r}; expected a string that contains a JSON object")
    return {**metadata, "extra_body": orjson.dumps({**extra, "seed": seed}).decode()}


def agent_of(row: Json) -> str | None:
    """Return the name of the row's agent, or None. Raises ValueError, with a readable message, if it is invalid."""
    given = row.get("agent_ref") or {}
    if not isinstance(given, dict) or not isinstance(given.get("name", ""), str):
        raise ValueError(f"agent_ref is {given!r}; expected {{name: ...}}")
    return given.get("name") or None


def id_of_row(row: Json) -> str | None:
    """Return the row's id, a string or a number. Values of other types are not ids, but data for the environment.

    Raises ValueError, with a readable message, for an id that cannot be written on one line of an order file.
    """
    for key in ID_KEYS:
        given = row.get(key)
        if isinstance(given, str | int | float) and not isinstance(given, bool):
            name = str(given)
            if name.splitlines() != [name.strip()]:
                found = "is empty" if not name.strip() else "contains a line break or starts or ends with a space"
                raise ValueError(f"{key} {found} ({name[:40]!r}); expected one line of text, or no {key}")
            return name
    return None


def _too_deep(encoded: bytes, value: Json) -> str:
    """Return the problem of a row that orjson can parse (up to 1,024 levels) but not encode in a request (up to 254).

    Returns an empty string if the row is not too deep.
    """
    if encoded.count(b"{") + encoded.count(b"[") < MAX_DEPTH:
        return ""
    wrapped: Any = value
    for _ in range(254 - MAX_DEPTH):
        wrapped = [wrapped]
    try:
        orjson.dumps(wrapped)
    except TypeError:
        return f": {TOO_DEEP}"
    return ""


def _missing_prompt(row: Json) -> str:
    """Return what is wrong with a row that has no responses_create_params.

    Empty if an environment with a user_template may accept the row.
    """
    if "responses_create_params" in row:
        return ""
    if "failure_kind" in row:
        return " is a failed attempt of a collection (X_failures.jsonl); expected a task"
    if not row or any(isinstance(row.get(key), list) for key in ("messages", "input")):
        return (
            f" has {_keys_of(row)}; expected responses_create_params with an `input` (a string or a list), or the "
            "fields that the environment's user_template needs"
        )
    return ""


def _keys_of(row: Json) -> str:
    return f"the key{'s' if len(row) > 1 else ''} {', '.join(sorted(row))}" if row else "no keys"


def _problem(row: Json) -> str:
    params = row.get("responses_create_params", {})
    prompt = params.get("input") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(prompt, str | list | None):
        return f" has {_keys_of(row)}; expected responses_create_params with an `input` (a string or a list)"
    if problem := _missing_prompt(row):
        return problem
    if isinstance(prompt, list):
        for index, item in enumerate(prompt):
            if not isinstance(item, dict):
                return f": input[{index}] is {json_kind(item)}; expected a message object"
    try:
        if params.get("metadata") is not None:
            with_seed(params["metadata"], 0)
        agent_of(row)
        id_of_row(row)
    except ValueError as error:
        return f": {error}"
    return ""


_ROLES = {"developer": "system"}


def messages_of(row: Json) -> list[Json]:
    """Return the row's messages with text only. Trainers show them, and some compute lengths from them."""
    given = mapping(row.get("responses_create_params")).get("input")
    found = [{"role": "user", "content": given}] if isinstance(given, str) else items(given)
    messages = [item for item in found if mapping(item).get("role")]
    return [
        {"role": _ROLES.get(item["role"], item["role"]), "content": text_of(item.get("content"))} for item in messages
    ] or [{"role": "user", "content": ""}]


def text_of(content: Any) -> str:
    """Return the text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(str(mapping(part).get("text") or "") for part in items(content))
