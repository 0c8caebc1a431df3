"""Decompresses gzip, bzip2, xz and zstd files, which are detected by their first bytes, not by their names.

Concatenated members, such as the output of `cat a.gz b.gz`, are read as one stream. Truncated or damaged data always
raises an error, whereas the standard library's bz2 and lzma stop silently.
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

from rollyard.records.io.optional import load

HEAD = 6
"""Number of leading bytes that are needed to identify a format."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Extensions of the names of compressed files."""
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
    """The concatenated contents of a file's members."""

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
