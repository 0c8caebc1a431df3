"""Compressed files as the bytes that they hold: gzip, bzip2, xz and zstd, told by their first bytes, not by a name.

Several members one after the other, as `cat a.gz b.gz` makes them, are one content. Nothing is skipped: what is cut off
or no member is an error, where the standard library's bz2 and lzma end silently.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

from rollyard.services.io.optional import load

HEAD = 6
"""First bytes that tell a format."""
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
    """The format's name; empty for bytes that are not compressed."""
    return next((name for name, magics in _MAGIC.items() if head.startswith(magics)), "")


def decompressed(file: BinaryIO, compression: str) -> io.BufferedIOBase:
    """What a file holds, read piece by piece. Raises OperatorError where a package is missing.

    Reading raises EOFError where the file is cut off, OSError or ValueError where it is damaged.
    """
    if compression == "gzip":
        return gzip.GzipFile(fileobj=file)
    make: Callable[[], _Decompressor]
    if compression == "zstd":
        make = _zstd().ZstdDecompressor
    else:
        make = bz2.BZ2Decompressor if compression == "bzip2" else lzma.LZMADecompressor
    return io.BufferedReader(_Members(file, make), _CHUNK)


def read_errors() -> tuple[type[Exception], ...]:
    """What reading a damaged file raises, beside EOFError where it is cut off."""
    zstd = sys.modules.get("compression.zstd") or sys.modules.get("backports.zstd")
    return (OSError, ValueError, zlib.error, lzma.LZMAError, *((zstd.ZstdError,) if zstd else ()))


class _Members(io.RawIOBase):
    """The contents of a file's members, one after the other."""

    def __init__(self, file: BinaryIO, make: Callable[[], _Decompressor]) -> None:
        self._file = file
        self._make = make
        self._member: _Decompressor | None = None
        self._pending = b""
        """Read from the file, and not given to a member yet."""

    def readable(self) -> bool:
        """See io.IOBase."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase. Raises EOFError in the middle of a member."""
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
        """The member that is being read, or the one after it; None at the end of the file."""
        if self._member is None or self._member.eof:
            # Between members, xz and tape archives pad with zero bytes.
            while not (pending := self._pending.lstrip(b"\0")):
                self._pending = self._file.read(_CHUNK)
                if not self._pending:
                    return None
            self._pending, self._member = pending, self._make()
        return self._member


def _zstd() -> Any:
    """Python's own module, which is a package for Pythons before 3.14."""
    if sys.version_info >= (3, 14):
        return importlib.import_module("compression.zstd")
    return load("backports.zstd", "zstd", "reading zstd files")
