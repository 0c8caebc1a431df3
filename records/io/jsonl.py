"""Reads JSON Lines and replaces files atomically. Only `\\n` ends a line; other line separators are part of the text.

`on_error` handles a line that is not a JSON object: `refuse` rejects the file, `skip` omits the line, and `hand_over`
yields the BadLine in its place. Any other function that takes a BadLine also works. `parse` decides what counts as
JSON: `lenient`, `strict`, or `rollyard.records.io.strict_json.ExactParser`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, overload

import orjson

from rollyard.records.errors import RollyardError, RunError
from rollyard.records.io.json_problems import why_unreadable
from rollyard.records.io.json_values import json_kind
from rollyard.records.io.lines import Lines
from rollyard.records.io.locked_files import sync_folder
from rollyard.records.types import Json

T = TypeVar("T")

_new = tuple.__new__  # takes half the time of ParsedLine(...)


class ParsedLine(NamedTuple):
    """A line that contains a JSON object."""

    number: int
    """Line number, starting at 1 and counting blank lines. If only part of a file is read, it is relative to the start
    of that part."""
    offset: int
    """Byte offset of the line."""
    line: bytes
    """The raw line, including its line ending."""
    value: Json


class BadLine(NamedTuple):
    """A line that does not contain a JSON object. `number`, `offset` and `line` are as in ParsedLine."""

    number: int
    offset: int
    line: bytes
    problem: str
    """What was found and what was expected, to be appended to `line 17`."""

    @property
    def torn(self) -> bool:
        """True if the file ends within this line, because its writer has not finished or was killed."""
        return not self.line.endswith(b"\n")


def lenient(line: bytes) -> Any:
    """Parse a line that contains any JSON value. Accepts NaN and escaped lone surrogates, which orjson rejects.

    Raises ValueError if the line is not valid JSON.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return _parse_slowly(line)


def strict(line: bytes) -> Any:
    """Parse a line that contains any JSON value. Accepts escaped lone surrogates, but not NaN.

    Raises ValueError if the line is not valid JSON.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return _parse_slowly(line, parse_constant=_not_json)


@overload
def iter_jsonl(
    source: Path | Iterable[tuple[int, bytes]],
    on_error: Callable[[BadLine], None],
    *,
    parse: Callable[[bytes], Any] = lenient,
) -> Iterator[ParsedLine]: ...


@overload
def iter_jsonl(
    source: Path | Iterable[tuple[int, bytes]],
    on_error: Callable[[BadLine], T],
    *,
    parse: Callable[[bytes], Any] = lenient,
) -> Iterator[ParsedLine | T]: ...


def iter_jsonl(
    source: Path | Iterable[tuple[int, bytes]],
    on_error: Callable[[BadLine], Any],
    *,
    parse: Callable[[bytes], Any] = lenient,
) -> Iterator[Any]:
    """Yield each line that contains a JSON object. Blank lines are skipped.

    `source`: a file, or lines with their offsets (`Lines`, `with_offsets`). `on_error` is called with every other line;
    its result is yielded in place of the line unless it is None, and its exceptions propagate. `parse` returns a line's
    value, or raises ValueError with a message to be appended to `line 17:`.

    Raises OSError if the file cannot be read.
    """
    for number, (offset, line) in enumerate(Lines(source) if isinstance(source, Path) else source, 1):
        if line.isspace():
            continue
        try:
            value = parse(line)
        except ValueError as error:
            result = on_error(BadLine(number, offset, line, why_unreadable(line, offset, error)))
        else:
            if type(value) is dict:
                yield _new(ParsedLine, (number, offset, line, value))
                continue
            result = on_error(BadLine(number, offset, line, f" is {json_kind(value)}; expected an object"))
        if result is not None:
            yield result


def refuse(file: object, advice: str = "", error: type[RollyardError] = RunError) -> Callable[[BadLine], NoReturn]:
    """Return an `on_error` that raises `error`. The message contains the file, line number, problem and `advice`."""

    def on_error(bad: BadLine) -> NoReturn:
        raise error(f"{file}: line {bad.number}{bad.problem}{advice and f'. {advice}'}")

    return on_error


def skip(_: BadLine) -> None:
    """An `on_error` that skips the line."""


def hand_over(bad: BadLine) -> BadLine:
    """An `on_error` that yields the BadLine itself."""
    return bad


def _parse_slowly(line: bytes, **options: Any) -> Any:
    try:
        return json.loads(line, **options)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("a number has more digits than Python can parse") from error
        raise


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def replace(path: Path, data: bytes | Iterable[bytes], *, synced: bool = True) -> None:
    """Replace `path` atomically: readers see either the old or the new content.

    `synced`: make the new content survive a power failure. Raises RunError if the file cannot be written. An exception
    raised by the iterable propagates, and the old content stays in place.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            for piece in (data,) if isinstance(data, bytes) else data:
                file.write(piece)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if synced:
            sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
