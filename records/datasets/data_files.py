"""Reads data files line by line. They can be local files or S3 objects: plain text, compressed text, or tables.

A file's format is detected from its first bytes; only CSV and TSV are known by their names. An S3 object is copied
once, to an unnamed temporary file; other files are read in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import orjson

from rollyard.records.datasets.columns import delimited_lines, delimiter_of
from rollyard.records.datasets.compression import HEAD, compression_of, decompressed, read_errors
from rollyard.records.datasets.parquet import table_lines, table_of
from rollyard.records.datasets.temporary_copy import TemporaryCopy
from rollyard.records.errors import OperatorError
from rollyard.records.io import s3
from rollyard.records.io.search_path import find_file

MAX_LINE_BYTES = 256 * 1024 * 1024
"""Maximum length of a line. Equals the maximum size of a request body (services/http/request.py)."""
SIDECAR_CONTENTS = {
    "_status.json": "the progress of a collection",
    "_manifest.json": "the identity of a collection",
    "_metrics.json": "the metrics of a collection",
    "_failures.jsonl": "the failed attempts of a collection",
    "_notes.jsonl": "the notes on the rollouts of a collection",
}
"""Suffix of each file next to a collection's output -> what the file contains. None of them contains tasks."""
_MANIFEST = "_manifest.json"
STATE = "state.json"
"""In a folder that `datasets.Dataset.save_to_disk` wrote, this file names the others."""


class DataFile(Protocol):
    """A path, or a copy that can be opened like a path. `str()` returns the name that the user passed."""

    def open(self, mode: Literal["rb"], /) -> BinaryIO:
        """Open the file for reading, at its first byte."""
        ...

    def __fspath__(self) -> str:
        """Return a path that this process can open."""
        ...


class DataFiles:
    """Finds data files in a search path and on S3."""

    def __init__(self, roots: Iterable[Path]) -> None:
        """`roots`: folders to search, in order."""
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
