"""NotesFile: appends records to X_notes.jsonl and follows what others append.

Several processes on several hosts may write at once. Each record is one write to a file that is opened for appending
(O_APPEND), under an exclusive lock (flock, which local file systems and NFS support). Nothing is ever rewritten: lines
of other programs, lines of newer versions and incomplete lines stay as they are.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.errors import RunError
from rollyard.records.jsonl import Lines, ParsedLine, hand_over, iter_jsonl
from rollyard.records.locked_files import InUse, append_line, open_locked
from rollyard.records.note_records import AnyRecord, parse_record
from rollyard.records.rollout_file import RolloutPaths

LOCK_WAIT_S = 10.0
_LOCK_POLL_S = 0.005
_MAX_IGNORED = 20


@dataclass(frozen=True)
class NotesContent:
    records: tuple[AnyRecord, ...] = ()
    """In the order of the file. A line that occurs twice is read once."""
    ignored: tuple[str, ...] = ()
    """Lines that are not records, as `line 3: ...`; at most 20."""
    ignored_count: int = 0
    error: str = ""
    """Why the file cannot be read; empty if it can, or if it does not exist."""
    generation: int = 0
    """Changes if earlier lines have changed, so that `records` does not continue the previous ones."""


class NotesFile:
    """Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = NotesContent()
        self._ids: set[str] = set()
        self._position = self._lines = 0
        self._last_line = b""
        """The last line that was read; if it is no longer there, the file was replaced or edited."""
        self._file: tuple[int, int] | None = None
        self._lock = threading.Lock()

    @staticmethod
    def beside(rollouts: Path) -> NotesFile:
        return NotesFile(RolloutPaths(rollouts).notes)

    def append(self, record: AnyRecord) -> None:
        """Append a record. Raises RunError if it cannot be written; the file then has no part of it."""
        line = record.model_dump_json().encode() + b"\n"
        try:
            fd = _opened_and_locked(self.path)
            try:
                append_line(fd, line)
                fcntl.flock(fd, fcntl.LOCK_UN)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def read(self) -> NotesContent:
        """Return all records, reading only what was appended since the last call. An incomplete last line waits."""
        with self._lock:
            try:
                stat = self.path.stat()
                if not self._continues(stat):
                    self._restart(stat)
                if stat.st_size > self._position:
                    self._read_on()
            except FileNotFoundError:
                if self._file is not None:
                    self._restart(None)
            except OSError as error:
                self._changed(error=f"{self.path} cannot be read: {error.strerror or error}")
            else:
                if self._content.error:
                    self._changed(error="")
            return self._content

    def why_not_writable(self) -> str:
        if self.path.exists():
            return "" if self.path.is_file() and os.access(self.path, os.W_OK) else f"{self.path} cannot be written"
        folder = self.path.parent
        return "" if os.access(folder, os.W_OK | os.X_OK) else f"the folder {folder} cannot be written"

    def _continues(self, stat: os.stat_result) -> bool:
        if self._file != (stat.st_dev, stat.st_ino) or stat.st_size < self._position:
            return False
        with self.path.open("rb") as file:
            file.seek(self._position - len(self._last_line))
            return file.read(len(self._last_line)) == self._last_line

    def _restart(self, stat: os.stat_result | None) -> None:
        generation = self._content.generation + (self._file is not None)
        self._content = NotesContent(generation=generation)
        self._ids, self._position, self._lines, self._last_line = set(), 0, 0, b""
        self._file = None if stat is None else (stat.st_dev, stat.st_ino)

    def _read_on(self) -> None:
        records, ignored, count = list(self._content.records), list(self._content.ignored), self._content.ignored_count
        lines = Lines(self.path, self._position, whole=True)
        for found in iter_jsonl(self._counted(lines), hand_over):
            try:
                if not isinstance(found, ParsedLine):
                    raise ValueError(found.problem.strip(" :"))
                record = parse_record(found.value)
            except ValueError as error:
                count += 1
                ignored = [*ignored, f"line {self._lines}: {error}"][:_MAX_IGNORED]
                continue
            if record.id not in self._ids:
                self._ids.add(record.id)
                records.append(record)
        self._position = max(self._position, lines.end)
        self._changed(records=tuple(records), ignored=tuple(ignored), ignored_count=count)

    def _counted(self, lines: Lines) -> Iterator[tuple[int, bytes]]:
        for offset, line in lines:
            self._lines += 1
            self._last_line = line
            yield offset, line

    def _changed(self, **fields: object) -> None:
        kept = {name: getattr(self._content, name) for name in NotesContent.__dataclass_fields__}
        self._content = NotesContent(**{**kept, **fields})


def _opened_and_locked(path: Path) -> int:
    """Open the file and lock it. Raises OSError, also if another process holds the lock for too long."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return open_locked(path, 0o666)  # the umask decides whether other users may write
        except InUse as error:
            if time.monotonic() >= deadline:
                detail = f"another process has kept it locked for {LOCK_WAIT_S:.0f} s"
                raise OSError(errno.EAGAIN, detail, str(path)) from error
        time.sleep(_LOCK_POLL_S)
