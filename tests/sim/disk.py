"""The simulated disk: real files, of which a power failure may take what was not synced, and a crash tears writes.

It replaces functions of `os` in this process, which only simulates; the product's code is unchanged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.sim.loop import PROCESS


class Killed(BaseException):
    """Unwinds the code of a simulated process that has just died in the middle of a call."""


class SimDisk:
    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self._rng = rng
        self._prefix = str(folder)
        self._owners: dict[int, str] = {}
        """Open descriptor -> process."""
        self._synced: dict[int, int] = {}
        """Inode -> bytes that survive a power failure."""
        self.full = 0.0
        """Probability that a write finds the disk full."""
        self.torn: str = ""
        """The process whose next write is its last, and incomplete."""
        self.dead: set[str] = set()
        self.is_gone = False
        """True at the end, when what is left of the processes is collected."""
        self._real = {name: getattr(os, name) for name in _PATCHED}

    def close_of(self, process: str) -> None:
        """Close what a killed process had open, which releases its locks."""
        self.dead.add(process)
        for fd in [fd for fd, owner in self._owners.items() if owner == process]:
            del self._owners[fd]
            with contextlib.suppress(OSError):
                self._real["close"](fd)

    def sync_all(self) -> None:
        for path in self.folder.rglob("*"):
            self._synced[path.stat().st_ino] = path.stat().st_size

    def lose_power(self) -> None:
        """Cut each file at a place between what was synced and what was written."""
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                found = path.stat()
                synced = min(self._synced.get(found.st_ino, 0), found.st_size)
                if synced < found.st_size:
                    os.truncate(path, self._rng.randint(synced, found.st_size))

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        for name in _PATCHED:
            setattr(os, name, getattr(self, f"_{name}"))
        try:
            yield
        finally:
            for name, function in self._real.items():
                setattr(os, name, function)
            for fd in list(self._owners):
                with contextlib.suppress(OSError):
                    self._real["close"](fd)

    def _check(self) -> str:
        process = PROCESS.get()
        if process in self.dead or self.is_gone:
            raise Killed
        return process

    def _open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        process = self._check()
        fd: int = self._real["open"](path, flags, mode, **more)
        if os.fspath(path).__class__ is str and str(path).startswith(self._prefix):
            self._owners[fd] = process
        return fd

    def _close(self, fd: int) -> None:
        self._check()
        self._owners.pop(fd, None)
        self._real["close"](fd)

    def _write(self, fd: int, data: Any) -> int:
        process = self._check()
        if fd not in self._owners:
            return self._real["write"](fd, data)  # type: ignore[no-any-return]
        if process == self.torn:
            self.torn = ""
            self._real["write"](fd, data[: self._rng.randrange(len(data) + 1)])
            self.dead.add(process)
            raise Killed
        if self.full and self._rng.random() < self.full:
            self._real["write"](fd, data[: self._rng.randrange(len(data))])
            raise OSError(errno.ENOSPC, "No space left on device")
        if self._rng.random() < 0.05:
            return self._real["write"](fd, data[: self._rng.randrange(len(data)) + 1])  # type: ignore[no-any-return]
        return self._real["write"](fd, data)  # type: ignore[no-any-return]

    def _fsync(self, fd: int) -> None:
        self._check()
        found = os.fstat(fd)
        self._synced[found.st_ino] = found.st_size

    def _ftruncate(self, fd: int, length: int) -> None:
        self._check()
        self._real["ftruncate"](fd, length)
        inode = os.fstat(fd).st_ino
        self._synced[inode] = min(self._synced.get(inode, 0), length)

    def _rename(self, source: Any, target: Any, **more: Any) -> None:
        self._check()
        self._real["rename"](source, target, **more)

    def _replace(self, source: Any, target: Any, **more: Any) -> None:
        self._check()
        self._real["replace"](source, target, **more)

    def _link(self, source: Any, target: Any, **more: Any) -> None:
        self._check()
        self._real["link"](source, target, **more)

    def _unlink(self, path: Any, **more: Any) -> None:
        self._check()
        with contextlib.suppress(OSError):
            found = os.stat(path)
            if found.st_nlink == 1:
                self._synced.pop(found.st_ino, None)
        self._real["unlink"](path, **more)


_PATCHED = ("open", "close", "write", "fsync", "ftruncate", "rename", "replace", "link", "unlink")
