"""Reads data files line by line. They can be local files or S3 objects: plain text, compressed text, or tables.

A file's format is detected from its first bytes; only CSV and TSV are known by their names. An S3 object is copied
once, to an unnamed temporary file; other files are read in place. A file is searched for in the user's own folder first
and in the installed package last.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import importlib
import io
import json
import lzma
import os
import re
import sys
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, cast

import orjson

from rollyard.records import s3
from rollyard.records.errors import OperatorError, RunError, did_you_mean
from rollyard.records.optional import load
from rollyard.records.strict_json import load_exact
from rollyard.records.types import Json

INSTALLED = Path(__file__).resolve().parents[1]
"""The folder that contains Rollyard's packages, configs and data: the checkout, or `site-packages/rollyard`."""
IMPORT_ROOT = Path(__file__).parents[2]
"""The folder from which `rollyard` is imported: `src` in the checkout, or site-packages."""


def resolve(path: Path, roots: Sequence[Path]) -> Path:
    """Return the path of a file in the first root that contains it. Raises OperatorError if no root does."""
    found = find_file(path, roots)
    if found is None:
        raise OperatorError(f"{path} does not exist (looked in {', '.join(map(str, roots))})")
    return found


def find_file(path: str | Path, roots: Iterable[Path]) -> Path | None:
    """Return the path of a file in the first root that contains it; None if no root does.

    Raises OperatorError if a root is unreadable.
    """
    try:
        return next((root / path for root in roots if (root / path).is_file()), None)
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror}") from error


class TemporaryCopy:
    """A file in TMPDIR that can be opened like a path: each `open("rb")` starts at the first byte."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._fd, path = tempfile.mkstemp(prefix="rollyard-")
        os.unlink(path)  # noqa: PTH108 - the open descriptor keeps the bytes
        self._size = 0
        weakref.finalize(self, os.close, self._fd)

    def __str__(self) -> str:
        return self._name

    def open(self, mode: Literal["rb", "wb"]) -> BinaryIO:
        return open(self, mode)  # noqa: PTH123

    def __fspath__(self) -> str:
        """Return a path that this process can open."""
        return f"/proc/self/fd/{self._fd}"

    def append(self, data: bytes) -> int:
        """Append bytes and return their offset. Raises RunError if they cannot be written."""
        offset = self._size
        try:
            while data:
                written = os.pwrite(self._fd, data, self._size)
                self._size += written
                data = data[written:]
        except OSError as error:
            raise RunError(
                f"the rows of {self} cannot be copied to {tempfile.gettempdir()}: {error.strerror}. Free some space "
                "there, or set TMPDIR to another folder"
            ) from error
        return offset


MAX_LINE_BYTES = 256 * 1024 * 1024
"""Maximum length of a line. Equals the maximum size of a request body (services/http/request.py)."""
SIDECAR_CONTENTS = {
    "_status.json": "the progress of a collection",
    "_manifest.json": "the identity of a collection",
    "_metrics.json": "the metrics of a collection",
    "_failures.jsonl": "the failed attempts of a collection",
    "_notes.jsonl": "the notes on the rollouts of a collection",
    "_audit.jsonl": "the audit log of the notes on a collection",
    "_audit.1.jsonl": "the earlier audit log of the notes on a collection",
}
"""Suffix of each file next to a collection's output -> what the file contains. None of them contains tasks."""
_MANIFEST = "_manifest.json"
STATE = "state.json"
"""In a folder that `datasets.Dataset.save_to_disk` wrote, this file names the others."""


DataFile = Path | TemporaryCopy
"""A file of rows; `str()` is the name that the user passed."""


class DataFiles:
    def __init__(self, roots: Iterable[Path]) -> None:
        self.roots: Sequence[Path] = list(roots)
        self._copies: dict[str, TemporaryCopy] = {}

    def find(self, address: str | Path) -> Path | TemporaryCopy | None:
        """Return the file from the first root that contains it, or a copy of the S3 object. None if no root does.

        A folder that `datasets.Dataset.save_to_disk` wrote counts as a file; in S3, its address ends with a slash.

        Raises OperatorError if it is a sidecar file of a collection, or if the S3 object cannot be read.
        """
        name = str(address)
        if contents := sidecar_contents(name, lambda sibling: find_file(sibling, self.roots) is not None):
            raise OperatorError(f"{name} contains {contents}, not rows; pass the dataset or the rollouts instead")
        if name in self._copies:
            return self._copies[name]
        if name.startswith(s3.SCHEME):
            self._copies[name] = _saved_in_s3(name) if name.endswith("/") else _fetched(name)
            return self._copies[name]
        if (file := find_file(address, self.roots)) is not None:
            return file
        if (folder := find_file(f"{name}/{STATE}", self.roots)) is None:
            return None
        files = _files_saved(folder.read_bytes(), name)
        self._copies[name] = _joined(name, [folder.with_name(file) for file in files])
        return self._copies[name]

    def get(self, address: str | Path) -> Path | TemporaryCopy:
        """Like `find`, but raises OperatorError if no root contains the file."""
        if (found := self.find(address)) is None:
            raise OperatorError(f"{address} does not exist (looked in {', '.join(map(str, self.roots))})")
        return found


def _fetched(address: str) -> TemporaryCopy:
    copy = TemporaryCopy(address)
    s3.fetch(address, copy)
    return copy


def _saved_in_s3(address: str) -> TemporaryCopy:
    try:
        state = s3.read_text(address + STATE)
    except OperatorError as error:
        raise OperatorError(
            f"{error}. In S3, expected a file, or the folder of one split that save_to_disk of `datasets` wrote"
        ) from error
    return _joined(address, [_fetched(address + name) for name in _files_saved(state, address)])


def _files_saved(state: str | bytes, folder: str) -> list[str]:
    try:
        return [str(file["filename"]) for file in orjson.loads(state)["_data_files"]]
    except (ValueError, TypeError, KeyError) as error:
        raise OperatorError(f"{folder}/{STATE} does not name the files of the folder, as save_to_disk does") from error


def _joined(name: str, files: Iterable[DataFile]) -> TemporaryCopy:
    copy = TemporaryCopy(name)
    for file in files:
        for line in lines_of(file):
            copy.append(line)
    return copy


def sidecar_contents(name: str, exists: Callable[[str], bool]) -> str:
    """Describe what a sidecar file contains. Empty if the name is not that of a sidecar, or its manifest is missing."""
    for ending, contents in SIDECAR_CONTENTS.items():
        if name.endswith(ending) and exists(name.removesuffix(ending) + _MANIFEST):
            return contents
    return ""


def is_plain(file: DataFile) -> bool:
    """Return whether the file is uncompressed text, so that lines can be read by their offsets. Raises OSError."""
    with file.open("rb") as opened:
        head = opened.read(HEAD)
    return not compression_of(head) and not table_of(head) and not delimiter_of(str(file))


def lines_of(file: DataFile) -> Iterator[bytes]:
    """Yield the file's lines, including line endings. A table yields one line per row. Only \\n ends a line.

    Raises OperatorError if the file is unreadable, damaged or truncated, or if a line is too long.
    """
    lines_read = 0
    compression = ""
    try:
        with file.open("rb") as opened:
            head = opened.read(HEAD)
            opened.seek(0)
            compression = compression_of(head)
            for line in _lines(opened, head, compression, delimiter_of(str(file))):
                if len(line) > MAX_LINE_BYTES:
                    raise OperatorError(
                        f"{file}: line {lines_read + 1} is longer than the limit of {MAX_LINE_BYTES:,} bytes"
                    )
                yield line
                lines_read += 1
    except EOFError as error:
        raise OperatorError(
            f"{file} is truncated: its {compression} data ends unexpectedly after {lines_read:,} complete lines. "
            "Copy or create it again"
        ) from error
    except read_errors() as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        after = f" after line {lines_read:,}" if lines_read else ""
        raise OperatorError(f"input file {str(file)!r} cannot be read{after}: {why}") from error


def _lines(file: BinaryIO, head: bytes, compression: str, delimiter: str) -> Iterator[bytes]:
    if table_of(head):
        return table_lines(file, head)
    source = decompressed(file, compression) if compression else file
    if delimiter:
        return delimited_lines(source, delimiter, MAX_LINE_BYTES)
    return iter(partial(source.readline, MAX_LINE_BYTES + 1), b"")


HEAD = 6
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_CHUNK = 1 << 16
_SKIPPABLE = tuple(bytes([0x50 + number]) + b"\x2a\x4d\x18" for number in range(16))
_MAGIC: dict[str, tuple[bytes, ...]] = {
    "gzip": (b"\x1f\x8b",),
    "bzip2": (b"BZh",),
    "xz": (b"\xfd7zXZ\x00",),
    "zstd": (b"\x28\xb5\x2f\xfd", *_SKIPPABLE),
}


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /, max_length: int = -1) -> bytes: ...


def compression_of(head: bytes) -> str:
    """Return the name of the compression format, or an empty string if the bytes are not compressed."""
    return next((name for name, magics in _MAGIC.items() if head.startswith(magics)), "")


def decompressed(file: BinaryIO, compression: str) -> io.BufferedIOBase:
    """Return a stream of the decompressed content. Raises OperatorError if the zstd package is missing.

    Reading raises EOFError if the file is truncated, and one of `read_errors()` if it is damaged.
    """
    if compression == "gzip":
        return gzip.GzipFile(fileobj=file)
    create: Callable[[], _Decompressor]
    if compression == "zstd":
        create = _zstd().ZstdDecompressor
    else:
        create = bz2.BZ2Decompressor if compression == "bzip2" else lzma.LZMADecompressor
    return io.BufferedReader(_Members(file, create), _CHUNK)


def read_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading a damaged file can raise, except EOFError for a truncated file."""
    zstd = sys.modules.get("compression.zstd") or sys.modules.get("backports.zstd")
    return (OSError, ValueError, zlib.error, lzma.LZMAError, *((zstd.ZstdError,) if zstd else ()))


class _Members(io.RawIOBase):
    def __init__(self, file: BinaryIO, create: Callable[[], _Decompressor]) -> None:
        self._file = file
        self._create = create
        self._member: _Decompressor | None = None
        self._pending = b""
        """Bytes that have been read from the file but not decompressed yet."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with decompressed bytes. Raises EOFError if the file ends inside a member."""
        while (member := self._open_member()) is not None:
            if member.needs_input and not self._pending:
                self._pending = self._file.read(_CHUNK)
                if not self._pending:
                    raise EOFError
            piece, self._pending = self._pending, b""
            data = member.decompress(piece, len(buffer))
            if member.eof:
                self._pending = member.unused_data
            if data:
                buffer[: len(data)] = data
                return len(data)
        return 0

    def _open_member(self) -> _Decompressor | None:
        """Return the current member, or the next one if the current one has ended; None at the end of the file."""
        if self._member is None or self._member.eof:
            # xz files and tape archives are padded with zero bytes between members.
            while not (pending := self._pending.lstrip(b"\0")):
                self._pending = self._file.read(_CHUNK)
                if not self._pending:
                    return None
            self._pending, self._member = pending, self._create()
        return self._member


def _zstd() -> Any:
    """Import zstd from the standard library, or its backport on Python versions before 3.14."""
    if sys.version_info >= (3, 14):
        return importlib.import_module("compression.zstd")
    return load("backports.zstd", "zstd", "reading zstd files")


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


# Reads the rows of Parquet and Arrow files as lines of JSON. Requires the `hub` extra.

_BATCH = 256
"""Maximum number of rows in memory at a time. It is low because a row may contain a long conversation."""
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_PARAMS = "responses_create_params"


def table_of(head: bytes) -> str:
    """Return the name of the table format, or an empty string if the bytes are not the start of a table."""
    if head.startswith(_PARQUET):
        return "Parquet"
    return "Arrow" if head.startswith((_ARROW_FILE, _ARROW_STREAM)) else ""


def table_lines(file: BinaryIO, head: bytes) -> Iterator[bytes]:
    """Yield one line per row.

    Raises OperatorError if pyarrow is missing, ValueError if the table is damaged or JSON cannot represent a value.
    """
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
            row[_PARAMS] = _parse_json_text(params)
        line = json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_encode_temporal)
    except ValueError as error:
        why = "a number is NaN or infinite, which JSON cannot represent" if "compliant" in str(error) else error
        raise ValueError(f"row {number}: {why}") from error
    return line.encode() + b"\n"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _parse_json_text(value: str) -> Any:
    """Parse a string that contains JSON; return any other string unchanged.

    Raises ValueError if parsing would drop a duplicate key or lose digits of a number.
    """
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    return load_exact(value.encode())


def _encode_temporal(value: Any) -> str:
    """Encode a date or time in ISO format. Raises ValueError for a type that JSON cannot represent exactly."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    raise ValueError(f"JSON cannot represent a {type(value).__name__}; convert the column to strings or numbers")
