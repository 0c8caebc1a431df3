"""JSON Lines on disk: append whole lines or nothing, and heal a torn tail. Lines end at `\\n` only."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import orjson

from rollyard.services.errors import RunError
from rollyard.services.io.external_changes import outside_change
from rollyard.services.io.locked_files import open_locked, replace_locked, sync_folder, unused, write_synced

_CHUNK = 1 << 20
MEND = "Delete that line, or start over with +overwrite=true, which moves the old files aside."


class JsonLines:
    """An append-only file with one writer. What was appended is whole; after a crash only the tail can be torn.

    `check` and `verify` find what other programs did to the file while it was open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = open_locked(path)
        self.set_aside = self._heal()
        self._size = os.fstat(self._fd).st_size
        self._marks = array("q")
        """A hash of each line that was read or written: 8 bytes a line."""
        self._all_marked = self._size == 0

    def append(self, line: bytes) -> None:
        """Write one line (without its `\\n`). Raises RunError when it cannot be written; the file is then as before."""
        if os.fstat(self._fd).st_size != self._size:
            self.check()
        data = line + b"\n"
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            if os.fstat(self._fd).st_size > self._size:
                os.ftruncate(self._fd, self._size)
            raise RunError(f"cannot write {self.path}: {error.strerror}. What is in it is whole.") from error
        self._size += len(data)
        self._marks.append(hash(data))

    def rows(self) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
        """Every line with its number and object, blank lines left out. Raises RunError naming one that is no object."""
        self._marks, self._all_marked = array("q"), True
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                self._marks.append(hash(line))
                if not line.strip():
                    continue
                try:
                    row = _loads(line)
                except ValueError as error:
                    raise RunError(f"{self.path}: line {number} is not JSON ({error}). {MEND}") from error
                if not isinstance(row, dict):
                    raise RunError(f"{self.path}: line {number} is not a JSON object. {MEND}")
                yield number, line, row

    def check(self) -> None:
        """Raises RunError when `path` is not the open file any more, or not as long as this process left it."""
        try:
            found = outside_change(self._fd, self.path, self._size)
        except OSError as error:
            found = f"{self.path} cannot be looked at any more: {error.strerror}"
        if found:
            raise RunError(found)

    def verify(self) -> None:
        """`check`, then read the file again. Raises RunError naming a line that is not as it was read or written.

        A file that was not empty and was not read with `rows` is only checked.
        """
        self.check()
        if not self._all_marked:
            return
        with self.path.open("rb") as file:
            for number, (line, mark) in enumerate(zip(file, self._marks, strict=False), 1):
                if hash(line) != mark:
                    raise RunError(
                        f"{self.path}: line {number} was changed by another program while the file was being written. "
                        "Restore or delete that line, then the same command goes on"
                    )

    def sync(self) -> None:
        """Make what was appended survive a power cut."""
        os.fsync(self._fd)

    def restart(self, aside: Path) -> None:
        """Move the file to `aside` and go on with an empty one under the same lock and name. Raises RunError."""
        try:
            fd = replace_locked(self.path, aside)
        except OSError as error:
            raise RunError(f"{self.path} cannot be moved aside: {error.strerror}") from error
        os.close(self._fd)
        self._fd, self._size, self._marks, self._all_marked = fd, 0, array("q"), True

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
        write_synced(aside, tail)
        os.ftruncate(self._fd, keep)
        return aside


def _loads(line: bytes) -> Any:
    """A line's value. Escapes of lone surrogates are valid JSON that others write and orjson refuses.

    Raises ValueError.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            return json.loads(line, parse_constant=_refuse)
        except RecursionError as error:
            raise ValueError("nested too deep") from error


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def replace(path: Path, data: bytes | Iterable[bytes], *, synced: bool = True) -> None:
    """Write `path`, whole or piece by piece, so that a reader sees the old or the new content, never a part.

    `synced`: it survives a power cut. Raises RunError; what the pieces raise passes through and leaves the old content.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            for piece in (data,) if isinstance(data, bytes) else data:
                file.write(piece)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if synced:
            sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
