"""Computes a short digest of a file's contents."""

from __future__ import annotations

import hashlib
from pathlib import Path

DIGITS = 12
_LARGE = 64 << 20


def file_digest(path: Path) -> str:
    """Return a digest of a file's contents, or of the size and both ends of a very large file."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            found = hashlib.sha256(file.read(_LARGE))
            if size > _LARGE:
                file.seek(max(_LARGE, size - _LARGE))
                found.update(file.read(_LARGE) + str(size).encode())
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return found.hexdigest()[:DIGITS]
