"""JsonLines: appends complete lines to a file, and moves an incomplete last line to a separate file."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

from rollyard.records.errors import RunError
from rollyard.records.jsonl import Lines, ParsedLine, iter_jsonl, refuse, strict
from rollyard.records.locked_files import open_locked, outside_change, replace_locked, unused, write_synced

_CHUNK = 1 << 20
REPAIR_HINT = "Delete that line, or start over with --overwrite, which moves the old files aside."


class JsonLines:
    """An append-only file with one writer. After a crash, only the last line can be incomplete.

    `check` and `verify` detect changes by other programs while the file is open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = open_locked(path)
        self.tail_file = self._move_incomplete_tail()
        self._size = os.fstat(self._fd).st_size
        self._line_hashes = array("q")
        """A hash of each line that was read or written, 8 bytes per line."""
        self._all_hashed = self._size == 0

    def append(self, line: bytes) -> None:
        """Append one line (passed without `\\n`). If the write fails, leaves the file unchanged and raises RunError."""
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
            raise RunError(
                f"cannot write {self.path}: {error.strerror}. The lines already in it are complete."
            ) from error
        self._size += len(data)
        self._line_hashes.append(hash(data))

    def rows(self) -> Iterator[ParsedLine]:
        """Yield every line that is not blank. Raises RunError if a line is not a JSON object."""
        self._line_hashes, self._all_hashed = array("q"), True
        return iter_jsonl(self._hashed_lines(), refuse(self.path, REPAIR_HINT), parse=strict)

    def check(self) -> None:
        """Raise RunError if `path` no longer refers to the open file, or if the file's size has changed."""
        try:
            problem = outside_change(self._fd, self.path, self._size)
        except OSError as error:
            problem = f"{self.path} can no longer be accessed: {error.strerror}"
        if problem:
            raise RunError(problem)

    def verify(self) -> None:
        """Run `check`, then compare every line with its hash, if all lines were written here or read with `rows`."""
        self.check()
        if not self._all_hashed:
            return
        with self.path.open("rb") as file:
            for number, (line, line_hash) in enumerate(zip(file, self._line_hashes, strict=False), 1):
                if hash(line) != line_hash:
                    raise RunError(
                        f"{self.path}: line {number} was changed by another program while the file was being written. "
                        "Restore or delete that line, then repeat the command to continue"
                    )

    def sync(self) -> None:
        os.fsync(self._fd)

    def restart(self, aside: Path, lines: Iterable[bytes] = ()) -> None:
        """Rename the file to `aside` and continue with one that holds `lines`, keeping the lock. Raises RunError."""
        try:
            fd = replace_locked(self.path, aside, lines)
        except OSError as error:
            raise RunError(f"{self.path} cannot be replaced: {error.strerror}") from error
        os.close(self._fd)
        self._fd, self._size, self._line_hashes = fd, os.fstat(fd).st_size, array("q")
        self._all_hashed = self._size == 0

    def close(self) -> None:
        os.close(self._fd)

    def _hashed_lines(self) -> Iterator[tuple[int, bytes]]:
        for offset, line in Lines(self.path):
            self._line_hashes.append(hash(line))
            yield offset, line

    def _move_incomplete_tail(self) -> Path | None:
        """Move the bytes after the last `\\n` to a new file and return its path, or None if there are none."""
        size = os.fstat(self._fd).st_size
        end, tail = size, b""
        while end > 0:
            start = max(0, end - _CHUNK)
            chunk = os.pread(self._fd, end - start, start)
            newline = chunk.rfind(b"\n")
            if newline >= 0:
                tail, end = chunk[newline + 1 :] + tail, start + newline + 1
                break
            tail, end = chunk + tail, start
        if not tail:
            return None
        aside = unused(self.path.with_name(f"{self.path.stem}_torn{self.path.suffix}"))
        write_synced(aside, tail)
        os.ftruncate(self._fd, end)
        return aside
