"""Reads JSON Lines and replaces files atomically. Only `\n` ends a line; other line separators are part of the text.

`on_error` handles a line that is not a JSON object: `refuse` rejects the file, `refuse_unless_torn` does, except for
an unfinished last line, `skip` omits the line, and `hand_over` yields the BadLine in its place. Any other function that
takes a BadLine also works. `parse` decides what counts as JSON: `lenient`, `strict`, or
`rollyard.records.strict_json.ExactParser`.
"""

from __future__ import annotations

import codecs
import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeVar, overload

import orjson

from rollyard.records.errors import RollyardError, RunError
from rollyard.records.locked_files import sync_folder
from rollyard.records.types import Json, json_kind

_TYPICAL_LINE_BYTES = 4096


class Lines:
    """The lines of a file that begin in the byte range [start, stop), each with its byte offset."""

    def __init__(
        self, source: Path | BinaryIO, start: int = 0, stop: int | None = None, *, whole: bool = False
    ) -> None:
        """`whole`: omit the last line if it has no line ending."""
        self.end = 0
        """Byte offset of the end of the last line that was read; 0 before the first line."""
        self._source = source
        self._start, self._stop = start, 1 << 62 if stop is None else stop
        self._whole = whole

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield each line with its byte offset. Raises OSError if the file cannot be read."""
        source, stop, whole = self._source, self._stop, self._whole
        with source.open("rb") if isinstance(source, Path) else nullcontext(source) as file:
            offset = self._start
            if offset:
                file.seek(offset - 1)
                offset += len(file.readline()) - 1
            elif source is file:
                file.seek(0)
            read = file.readline
            while offset < stop and (line := read()) and not (whole and not line.endswith(b"\n")):
                start, offset = offset, offset + len(line)
                self.end = offset
                yield start, line


def with_offsets(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield each of `lines` with its byte offset. For a compressed file, offsets refer to the decompressed data."""
    offset = 0
    for line in lines:
        yield offset, line
        offset += len(line)


def line_at(path: str | os.PathLike[str], offset: int) -> bytes:
    """Return the line at a byte offset, including its line ending. Raises OSError if the file cannot be read."""
    # Uses system calls directly, because a file object takes four times as long and this runs once per row.
    fd = os.open(path, os.O_RDONLY)
    try:
        line, size = b"", _TYPICAL_LINE_BYTES
        while b"\n" not in line and (piece := os.pread(fd, size, offset + len(line))):
            line, size = line + piece, max(size, len(line) + len(piece))
        return line[: line.find(b"\n") + 1] or line
    finally:
        os.close(fd)


_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "compressed data",
    b"\x28\xb5\x2f\xfd": "compressed data",
    b"PAR1": "a compressed Parquet file",
}
"""First bytes of formats that are often mistaken for JSON Lines."""


def why_unreadable(line: bytes, offset: int, error: ValueError) -> str:
    """Describe why the line at byte `offset` cannot be read. The result is meant to be appended to `line 17`."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f" is not JSON: {_why_not_json(line, offset, error)}"
    return f": {error}"


def _why_not_json(line: bytes, offset: int, error: ValueError) -> str:
    """Describe the likely cause. Usually the file has a different format or is truncated."""
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "the file is UTF-16; expected UTF-8 (iconv -f UTF-16 -t UTF-8)"
    if not offset and (
        format_name := next((what for head, what in _OTHER_FORMATS.items() if line.startswith(head)), "")
    ):
        return f"the file contains {format_name}; expected JSON Lines: unpack it"
    if b"\0" in line:
        return "it contains zero bytes; expected UTF-8 text (the file may have holes from a crash, or be UTF-16)"
    try:
        line.decode()
    except UnicodeDecodeError as decode_error:
        return f"it is not UTF-8: byte {line[decode_error.start]:#x} at {decode_error.start + 1}"
    if not offset and line.split() in ([b"["], [b"[{"], [b"[", b"{"], [b"{"]):
        return "a row spans several lines; expected one row per line (jq -c '.[]' converts a list)"
    cut = "" if line.endswith(b"\n") else ", where the file ends: it is truncated"
    if not isinstance(error, json.JSONDecodeError):
        return f"{error}{cut}"
    return f"{error.msg.removesuffix(' at')} at character {error.colno}{cut}"


T = TypeVar("T")

_new = tuple.__new__  # takes half the time of ParsedLine(...)


class ParsedLine(NamedTuple):
    number: int
    """Line number, starting at 1 and counting blank lines. If only part of a file is read, it is relative to the start
    of that part."""
    offset: int
    line: bytes
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


def refuse_unless_torn(file: object) -> Callable[[BadLine], None]:
    """Return an `on_error` that is `refuse`, but skips the last line of a file that is still being written."""
    invalid = refuse(file)
    return lambda bad: None if bad.torn else invalid(bad)


def skip(_: BadLine) -> None:
    """An `on_error` that skips the line."""


def hand_over(bad: BadLine) -> BadLine:
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


def replace(path: Path, data: bytes | Iterable[bytes], *, synced: bool = True, mode: int = 0o666) -> None:
    """Replace `path` atomically: readers see either the old or the new content.

    `synced`: make the new content survive a power failure; `mode`: its permissions, less those that the umask takes.
    Raises RunError if the file cannot be written. An exception raised by the iterable propagates, and the old content
    stays in place.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
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


def remove_unfinished(path: Path) -> None:
    """Remove the temporary files of calls of `replace` that were killed. No other process may write the file now."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.[0-9]*"):
        left.unlink(missing_ok=True)


def append(path: Path, line: bytes) -> None:
    """Append a line, which ends with a line feed, and sync it. For files with one writer at a time.

    If a writer was killed in the middle of a line, that line is ended first. Raises RunError if the file cannot be
    written.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            rest = b"\n" + line if torn else line
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        if size == 0:
            sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
