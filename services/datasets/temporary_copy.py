"""Copy: bytes kept in a temporary file without a name, so that nothing is left of it whatever ends the process."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import BinaryIO, Literal

from rollyard.services.errors import RunError


class TemporaryCopy:
    """Reads like a path: `open("rb")` begins at the first byte, as often as wanted. Lies in TMPDIR."""

    def __init__(self, name: str) -> None:
        """`name`: what messages call it."""
        self._name = name
        self._fd, path = tempfile.mkstemp(prefix="rollyard-")
        os.unlink(path)  # noqa: PTH108 - the descriptor keeps the bytes
        self._size = 0
        weakref.finalize(self, os.close, self._fd)

    def __str__(self) -> str:
        return self._name

    def open(self, mode: Literal["rb", "wb"]) -> BinaryIO:
        """From the first byte on, independent of other readers. Raises OSError."""
        return open(self, mode)  # noqa: PTH123

    def __fspath__(self) -> str:
        """A path that this process can open."""
        return f"/proc/self/fd/{self._fd}"

    def append(self, data: bytes) -> int:
        """Add bytes at the end; where they begin. Raises RunError when the disk does not take them."""
        at = self._size
        try:
            while data:
                written = os.pwrite(self._fd, data, self._size)
                self._size += written
                data = data[written:]
        except OSError as error:
            raise RunError(
                f"the rows of {self} cannot be copied to {tempfile.gettempdir()}: {error.strerror}. Make room there, "
                "or name another folder in TMPDIR"
            ) from error
        return at
