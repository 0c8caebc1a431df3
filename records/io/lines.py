"""Reads the lines of files as bytes, with their byte offsets. Only `\\n` ends a line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

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
