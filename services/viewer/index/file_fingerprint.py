"""Mark: what a file looked like when it was read, to tell growth from change without reading it again."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 4096
_BLOCKS = 64


@dataclass(frozen=True)
class FileFingerprint:
    """A file that was read up to the byte `end`."""

    end: int
    size: int
    mtime_ns: int
    digest: str
    """Of its first and last bytes before `end`, and of samples between them."""

    @classmethod
    def of(cls, path: Path, end: int, stat: os.stat_result, *, whole: bool) -> FileFingerprint:
        """The mark of `path`; `stat` was taken before it was read, `whole`: to its end. Raises OSError."""
        size, written = (stat.st_size, stat.st_mtime_ns) if whole else (-1, -1)
        return cls(end, size, written, _digest(path, end))

    def unchanged(self, stat: os.stat_result) -> bool:
        """It was read to its end, and nobody has written to it since."""
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)

    def fits(self, path: Path, stat: os.stat_result) -> bool:
        """Whether what was read still stands there: nothing was written, or only behind `end`. Raises OSError.

        A file that was written to and has its old size was changed somewhere: lines are appended, never exchanged.
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
