"""Lines of files as bytes, with the byte at which each begins. They end at `\\n` only: U+2028 is text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

_USUAL_LINE = 4096


class Lines:
    """The lines of a file that begin in [start, stop), each with the byte at which it begins."""

    def __init__(
        self, source: Path | BinaryIO, start: int = 0, stop: int | None = None, *, whole: bool = False
    ) -> None:
        """`whole`: leave out a last line without its end."""
        self.end = 0
        """Byte after the last line that was read; 0 before the first."""
        self._source = source
        self._start, self._stop = start, 1 << 62 if stop is None else stop
        self._whole = whole

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Raises OSError."""
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
                begin, offset = offset, offset + len(line)
                self.end = offset
                yield begin, line


def with_offsets(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines that are read from elsewhere, as a compressed file, each with the byte at which it begins."""
    offset = 0
    for line in lines:
        yield offset, line
        offset += len(line)


def line_at(path: str | os.PathLike[str], offset: int) -> bytes:
    """The line that begins at a byte, with its end. Raises OSError."""
    # Three calls of the kernel: an opened file object costs four times as much, and there are as many as rows.
    opened = os.open(path, os.O_RDONLY)
    try:
        line, size = b"", _USUAL_LINE
        while b"\n" not in line and (piece := os.pread(opened, size, offset + len(line))):
            line, size = line + piece, max(size, len(line) + len(piece))
        return line[: line.find(b"\n") + 1] or line
    finally:
        os.close(opened)
