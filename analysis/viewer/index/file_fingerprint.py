"""Fingerprints a file to tell whether it grew or was changed, without reading it again."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 4096
_BLOCKS = 64


@dataclass(frozen=True)
class FileFingerprint:
    """A fingerprint of a file that was read up to byte `end`."""

    end: int
    size: int
    mtime_ns: int
    digest: str
    """Digest of the first and last bytes before `end`, and of samples between them."""

    @classmethod
    def of(cls, path: Path, end: int, stat: os.stat_result, *, complete: bool) -> FileFingerprint:
        """Fingerprint the file at `path`. Raises OSError if it cannot be read.

        `stat` must be from before the file was read; `complete` states whether it was read to the end.
        """
        size, written = (stat.st_size, stat.st_mtime_ns) if complete else (-1, -1)
        return cls(end, size, written, _digest(path, end))

    def unchanged(self, stat: os.stat_result) -> bool:
        """Return whether the file was read to its end and has not been written to since."""
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)

    def fits(self, path: Path, stat: os.stat_result) -> bool:
        """Return whether the bytes before `end` are unchanged. Raises OSError if the file cannot be read.

        A file that was written to without growing counts as changed, because lines are only ever appended.
        """
        if self.unchanged(stat):
            return True
        if stat.st_size < self.end or stat.st_size == self.size == self.end:
            return False
        return _digest(path, self.end) == self.digest


def _digest(path: Path, end: int) -> str:
    found = hashlib.blake2b(digest_size=16)
    last = max(end - _BLOCK, 0)
    with path.open("rb", buffering=0) as file:
        for number in range(_BLOCKS):
            start = last * number // (_BLOCKS - 1)
            found.update(os.pread(file.fileno(), min(_BLOCK, end - start), start))
    return found.hexdigest()
