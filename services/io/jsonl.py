"""JSON Lines: the one reader, and how a file is replaced whole. Lines end at `\\n` only: U+2028 is text.

A reader decides with `on_error` what becomes of a line that does not hold a JSON object: `refuse` the file, `skip` the
line, `hand_over` the error in the line's place, or any function of a BadLine. It decides with `parse` what counts as
JSON: `lenient`, `strict`, or `rollyard.services.io.strict_json.ExactParser`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, overload

import orjson

from rollyard.services.errors import RollyardError, RunError
from rollyard.services.io.json_problems import why_unreadable
from rollyard.services.io.json_values import json_kind
from rollyard.services.io.lines import Lines
from rollyard.services.io.locked_files import sync_folder
from rollyard.services.types import Json

T = TypeVar("T")

_made = tuple.__new__  # half the time of ParsedLine(...)


class ParsedLine(NamedTuple):
    """A line that holds a JSON object."""

    number: int
    """From 1; blank lines count. In a part of a file it is counted from where that part begins."""
    offset: int
    """Byte at which the line begins."""
    line: bytes
    """With its end."""
    value: Json


class BadLine(NamedTuple):
    """A line that does not hold a JSON object. `number`, `offset` and `line` are those of ParsedLine."""

    number: int
    offset: int
    line: bytes
    problem: str
    """What was found and what was expected, to be read after `line 17`."""

    @property
    def torn(self) -> bool:
        """The file ends within this line: a writer is still at it, or was killed."""
        return not self.line.endswith(b"\n")


def lenient(line: bytes) -> Any:
    """A line's value, of any kind. NaN and escapes of lone surrogates are what others write and orjson refuses.

    Raises ValueError.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return _slowly(line)


def strict(line: bytes) -> Any:
    """A line's value, of any kind. Escapes of lone surrogates are valid JSON, NaN is not. Raises ValueError."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return _slowly(line, parse_constant=_not_json)


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
    """Each line that holds a JSON object; blank lines are left out.

    `source`: a file, or lines with their offsets (`Lines`, `with_offsets`). `on_error` is called with every other line:
    what it returns is yielded in the line's place, None leaves the line out, and what it raises ends the reading.
    `parse`: a line's value; raises ValueError in words to be read after `line 17:`.

    Raises OSError.
    """
    for number, (offset, line) in enumerate(Lines(source) if isinstance(source, Path) else source, 1):
        if line.isspace():
            continue
        try:
            value = parse(line)
        except ValueError as error:
            found = on_error(BadLine(number, offset, line, why_unreadable(line, offset, error)))
        else:
            if type(value) is dict:
                yield _made(ParsedLine, (number, offset, line, value))
                continue
            found = on_error(BadLine(number, offset, line, f" is {json_kind(value)}; expected an object"))
        if found is not None:
            yield found


def refuse(file: object, advice: str = "", error: type[RollyardError] = RunError) -> Callable[[BadLine], NoReturn]:
    """An `on_error` that raises `error` with the file, the line's number, what is wrong with it, and `advice`."""

    def raise_error(bad: BadLine) -> NoReturn:
        raise error(f"{file}: line {bad.number}{bad.problem}{advice and f'. {advice}'}")

    return raise_error


def skip(_: BadLine) -> None:
    """An `on_error` that leaves the line out."""


def hand_over(bad: BadLine) -> BadLine:
    """An `on_error` that yields the BadLine itself."""
    return bad


def _slowly(line: bytes, **options: Any) -> Any:
    try:
        return json.loads(line, **options)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("a number has more digits than Python reads") from error
        raise


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def replace(path: Path, data: bytes | Iterable[bytes], *, synced: bool = True) -> None:
    """Write `path`, whole or piece by piece, so that a reader sees the old or the new content, never a part.

    `synced`: it survives a power cut. Raises RunError; what the pieces raise passes through and leaves the old content.
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
