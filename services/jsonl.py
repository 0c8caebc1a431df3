"""JSON Lines on disk: append whole lines or nothing, and heal a torn tail. Lines end at `\\n` only."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from services.errors import RunError

_CHUNK = 1 << 20


class JsonLines:
    """An append-only file with one writer. What was appended is whole; after a crash only the tail can be torn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = _locked(path)
        self.set_aside = self._heal()
        self._size = os.fstat(self._fd).st_size

    def append(self, line: bytes) -> None:
        """Write one line (without its `\\n`). Raises RunError when it cannot be written; the file is then as before."""
        data = line + b"\n"
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            raise RunError(f"cannot write {self.path}: {error.strerror}. What is in it is whole.") from error
        self._size += len(data)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every line as an object. Raises RunError naming the line that is none."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = _loads(line)
                except ValueError as error:
                    raise RunError(
                        f"{self.path}: line {number} is not JSON ({error}). Take it out by hand, or start anew with "
                        "+overwrite=true, which moves the old files aside."
                    ) from error
                if not isinstance(row, dict):
                    raise RunError(f"{self.path}: line {number} is no JSON object")
                yield row

    def sync(self) -> None:
        """Make what was appended survive a power cut."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Give the file and its lock back."""
        os.close(self._fd)

    def _heal(self) -> Path | None:
        """Move what stands after the last `\\n` into a file of its own; its path, if there was anything."""
        size = os.fstat(self._fd).st_size
        keep, tail = size, b""
        while keep > 0:
            start = max(0, keep - _CHUNK)
            chunk = os.pread(self._fd, keep - start, start)
            newline = chunk.rfind(b"\n")
            if newline >= 0:
                tail, keep = chunk[newline + 1 :] + tail, start + newline + 1
                break
            tail, keep = chunk + tail, start
        if not tail:
            return None
        aside = unused(self.path.with_name(f"{self.path.stem}_torn{self.path.suffix}"))
        aside.write_bytes(tail)
        os.ftruncate(self._fd, keep)
        return aside


def _locked(path: Path) -> int:
    """A descriptor of `path` that this process alone has locked. Raises RunError."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between the two calls another writer may have moved the file aside.
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(fd)
            raise RunError(f"another process is writing {path}: wait for it, or choose another output") from error
        os.close(fd)


def _loads(line: bytes) -> Any:
    """A line's value. Escapes of lone surrogates are valid JSON that others write and orjson refuses."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


def unused(path: Path) -> Path:
    """`path`, or the first of path.1, path.2, ... that does not exist."""
    candidate, number = path, 0
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}.{number}")
    return candidate


def replace(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write `path`, whole or piece by piece, so that a reader sees the old or the new content, never a part.

    Raises RunError; what the pieces raise passes through, and leaves the old content.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            for piece in (data,) if isinstance(data, bytes) else data:
                file.write(piece)
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
