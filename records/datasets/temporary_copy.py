"""TemporaryCopy: an unnamed temporary file, which disappears when the process exits, even if it is killed."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import BinaryIO, Literal

from rollyard.records.errors import RunError


class TemporaryCopy:
    """A file in TMPDIR that can be opened like a path: each `open("rb")` starts at the first byte."""

    def __init__(self, name: str) -> None:
        """`name`: what to call the file in messages."""
        self._name = name
        self._fd, path = tempfile.mkstemp(prefix="rollyard-")
        os.unlink(path)  # noqa: PTH108 - the open descriptor keeps the bytes
        self._size = 0
        weakref.finalize(self, os.close, self._fd)

    def __str__(self) -> str:
        return self._name

    def open(self, mode: Literal["rb", "wb"]) -> BinaryIO:
        """Open the file at its first byte, independently of other readers. Raises OSError."""
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
