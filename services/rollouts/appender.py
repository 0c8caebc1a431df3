"""JsonLines: a file that one process appends lines to: whole lines or nothing, and a torn tail is set aside."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path

from rollyard.services.errors import RunError
from rollyard.services.io.external_changes import outside_change
from rollyard.services.io.jsonl import ParsedLine, iter_jsonl, refuse, strict
from rollyard.services.io.lines import Lines
from rollyard.services.io.locked_files import open_locked, replace_locked, unused, write_synced

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

    def rows(self) -> Iterator[ParsedLine]:
        """Every line that is not blank. Raises RunError naming one that does not hold an object."""
        self._marks, self._all_marked = array("q"), True
        return iter_jsonl(self._marked(), refuse(self.path, MEND), parse=strict)

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

    def _marked(self) -> Iterator[tuple[int, bytes]]:
        for offset, line in Lines(self.path):
            self._marks.append(hash(line))
            yield offset, line

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
