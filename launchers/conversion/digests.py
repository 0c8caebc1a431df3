"""SHA-256 digests of files, remembered until a file changes.

A checkpoint has tens to hundreds of gigabytes. Several files are read at a time, and the digests are stored per folder
with each file's size, inode, and times of modification and change, so that 24 jobs of a sweep read the files once.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import orjson

from rollyard.records.errors import RunError
from rollyard.records.types import Record

_RECENT_S = 2.0
"""A file that changed this recently may change again within the resolution of its times: its digest is not stored."""


class FileState(Record):
    """What changes when a file changes."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int


class _Known(Record):
    state: FileState
    digest: str


def file_state(file: Path) -> FileState:
    """Return a file's state. Raises OSError if it does not exist."""
    stat = file.stat()
    return FileState(size=stat.st_size, inode=stat.st_ino, modified_ns=stat.st_mtime_ns, changed_ns=stat.st_ctime_ns)


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class Digests:
    """Digests of the files of checkpoint folders."""

    def __init__(
        self, store: Path | None, *, remember: bool = True, threads: int = 8, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._remember = remember
        self._threads = threads
        self._clock = clock

    def of(self, folder: Path, names: Iterable[str]) -> dict[str, tuple[FileState, str]]:
        """Return state and digest of each file. Raises RunError if one changes while it is read."""
        known = self._load(folder)
        states = {name: file_state(folder / name) for name in names}
        unknown = [name for name in states if name not in known or known[name].state != states[name]]
        with ThreadPoolExecutor(max(1, min(self._threads, os.cpu_count() or 1))) as pool:
            digests = dict(zip(unknown, pool.map(lambda name: digest_of(folder / name), unknown), strict=True))
        found = {name: (state, digests.get(name) or known[name].digest) for name, state in states.items()}
        for name in unknown:
            require_unchanged(folder / name, states[name])
        if unknown and self._remember:
            self._save(folder, found)
        return found

    def _file(self, folder: Path) -> Path | None:
        return self._store / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.json" if self._store else None

    def _load(self, folder: Path) -> dict[str, _Known]:
        file = self._file(folder)
        with suppress(OSError, ValueError, AttributeError):  # absent, or damaged: read the files again
            if file is not None:
                stored = orjson.loads(file.read_bytes())
                return {name: _Known.model_validate(value) for name, value in stored.items()}
        return {}

    def _save(self, folder: Path, found: dict[str, tuple[FileState, str]]) -> None:
        latest = (self._clock() - _RECENT_S) * 1e9
        stored = {
            name: _Known(state=state, digest=digest).model_dump()
            for name, (state, digest) in found.items()
            if max(state.modified_ns, state.changed_ns) < latest
        }
        file = self._file(folder)
        if file is None or not stored:
            return
        temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
        with suppress(OSError):  # without the store, the files are read again
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(orjson.dumps(stored))
                temporary.rename(file)
            finally:
                temporary.unlink(missing_ok=True)


def require_unchanged(file: Path, state: FileState) -> None:
    """Raise RunError if the file has changed since its state was recorded."""
    try:
        changed = file_state(file) != state
    except FileNotFoundError:
        raise RunError(
            f"{file} was removed while it was being read: keep the checkpoint until it is converted"
        ) from None
    if changed:
        raise RunError(f"{file} changed while it was being read: wait until the checkpoint is saved completely")
