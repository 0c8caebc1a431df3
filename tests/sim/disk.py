"""The simulated disk: real files, of which a power failure may take what was not synced, and which run out of space.

It replaces functions of `os` and `open` in this process, which only simulates; the product's code is unchanged. A call
of a dead process ends that process's code instead of having an effect.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.sim.loop import PROCESS, Killed, SimLoop

_PATCHED = ("open", "close", "dup", "write", "fsync", "ftruncate", "rename", "replace", "link", "unlink", "mkdir")
_SHORT_WRITE = 0.05
_LATE = 0.02
"""Share of the calls that concern names of files in which the process waits for a second, while others run."""


class SimDisk:
    def __init__(self, folder: Path, rng: random.Random, loop: SimLoop) -> None:
        """`folder`: what it simulates; other files are as they are. Its subfolder `lost` keeps what has no name."""
        self.folder = folder
        self.full = 0.0
        """Probability that a write finds the disk full."""
        self.on_write: Callable[[str, str], None] = lambda process, path: None
        """Called after each change of a file, with its name."""
        self.on_death: Callable[[str], None] = lambda process: None
        """Called when a process dies in a call, with its name."""
        self._rng = rng
        self._loop = loop
        self._prefix = f"{folder}{os.sep}"
        self._open_files: dict[int, tuple[str, str]] = {}
        """Open descriptor -> process and path."""
        self._calls_left: dict[str, int] = {}
        """Process -> number of calls that change something until it dies."""
        self._synced: dict[int, int] = {}
        """Inode -> bytes that survive a power failure. No inode is used twice, as `lost` keeps each."""
        self._journal: list[tuple[str, Callable[[], object]]] = []
        """Changes of folders that were not synced, in order: the folder, and what undoes the change."""
        self._lost = folder / "lost"
        self._lost.mkdir()
        self._kept = 0
        self._is_gone = False
        self._real = {name: getattr(os, name) for name in _PATCHED}
        self._real_open = io.open

    def die_within(self, process: str, calls: int) -> None:
        """Let the process die in one of its next calls that change something; a write is then incomplete."""
        self._calls_left[process] = self._rng.randint(1, calls)

    def open_of(self, process: str) -> list[str]:
        return [path for owner, path in self._open_files.values() if owner == process]

    def close_of(self, process: str) -> None:
        """Close what a dead process had open, which releases its locks."""
        for fd in [fd for fd, (owner, _) in self._open_files.items() if owner == process]:
            del self._open_files[fd]
            self._real["close"](fd)

    def owner(self, fd: int) -> str:
        """Return the process that has opened this descriptor; empty if none has."""
        return self._open_files.get(fd, ("", ""))[0]

    def synced(self, path: Path) -> int:
        """Return how many bytes of a file a power failure leaves at least."""
        return self._synced.get(path.stat().st_ino, 0)

    def lose_power(self) -> None:
        """Undo the last changes of folders, and cut each file, at a place after what was synced."""
        keep = self._rng.randint(0, len(self._journal))
        for _, undo in reversed(self._journal[keep:]):
            undo()
        self._journal.clear()
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.parent != self._lost:
                found = path.stat()
                synced = min(self._synced.get(found.st_ino, 0), found.st_size)
                if synced < found.st_size:
                    os.truncate(path, self._rng.randint(synced, found.st_size))
                self._synced[found.st_ino] = path.stat().st_size

    def sync_all(self) -> None:
        self._journal.clear()
        for path in self.folder.rglob("*"):
            self._synced[path.stat().st_ino] = path.stat().st_size

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        system, files, names = os, io, builtins
        for name in _PATCHED:
            setattr(system, name, getattr(self, f"_{name}"))
        setattr(files, "open", self._file)  # noqa: B010
        setattr(names, "open", self._file)  # noqa: B010
        try:
            yield
        finally:
            setattr(files, "open", self._real_open)  # noqa: B010
            setattr(names, "open", self._real_open)  # noqa: B010
            for name, function in self._real.items():
                setattr(system, name, function)
            for fd in self._open_files:
                self._real["close"](fd)

    def end(self) -> None:
        """From now on, all processes count as dead."""
        self._is_gone = True

    def _alive(self) -> str:
        process = PROCESS.get()
        if self._is_gone or self._loop.is_dead(process):
            raise Killed
        return process

    def _changes(self) -> str:
        """Return the process that calls. Raises Killed if it is dead, or dies now."""
        process = self._alive()
        left = self._calls_left.get(process, 0)
        if left:
            self._calls_left[process] = left - 1
            if left == 1:
                self._die(process)
        return process

    def _wait(self, process: str) -> None:
        """Now and then, let other processes run meanwhile, one of which may kill this one."""
        if process != "world" and self._rng.random() < _LATE:
            self._loop.wait_in_call(process, self._rng.expovariate(1.0))
            self._alive()

    def _die(self, process: str) -> None:
        del self._calls_left[process]
        self.on_death(process)
        raise Killed

    def _is_simulated(self, path: object) -> bool:
        return str(path).startswith(self._prefix)

    def _keep(self, path: Any) -> Path | None:
        """Give a file a second name, so that it can be restored; None if there is no such file."""
        self._kept += 1
        kept = self._lost / str(self._kept)
        try:
            self._real["link"](path, kept, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return kept

    def _note(self, path: object, undo: Callable[[], object]) -> None:
        self._journal.append((str(Path(str(path)).parent), undo))

    def _restore(self, path: Any, kept: Path | None) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._real["unlink"](path)
        if kept is not None:
            self._real["link"](kept, path)

    # What replaces the functions of `os`, and `open`

    def _open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        process = self._alive()
        if not self._is_simulated(path):
            return self._real["open"](path, flags, mode, **more)  # type: ignore[no-any-return]
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        if is_new:
            self._changes()
        fd: int = self._real["open"](path, flags, mode, **more)
        self._open_files[fd] = process, str(path)
        if is_new:
            self._keep(path)
            self._note(path, lambda: self._restore(path, None))
        if flags & os.O_TRUNC:
            self._synced[os.fstat(fd).st_ino] = 0
        self._wait(process)
        return fd

    def _dup(self, fd: int) -> int:
        process = self._alive()
        new: int = self._real["dup"](fd)
        if fd in self._open_files:
            self._open_files[new] = process, self._open_files[fd][1]
        return new

    def _close(self, fd: int) -> None:
        self._alive()
        self._open_files.pop(fd, None)
        self._real["close"](fd)

    def _file(self, file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        """A file object whose writes are those of the simulated disk; one that only reads is a real one."""
        is_ours = file in self._open_files if isinstance(file, int) else self._is_simulated(file)
        if not is_ours or not set(mode) & set("wxa+"):
            self._alive()
            return self._real_open(file, mode, *more, **named)
        assert mode in ("wb", "xb"), f"the simulated disk knows no mode {mode!r}"
        flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if mode == "xb" else os.O_TRUNC)
        opener = named.get("opener") or (lambda path, flags: self._open(path, flags, 0o666))
        return io.BufferedWriter(_Raw(self, file if isinstance(file, int) else opener(file, flags)))

    def _write(self, fd: int, data: Any) -> int:
        self._alive()
        if fd not in self._open_files:
            return self._real["write"](fd, data)  # type: ignore[no-any-return]
        process, path = self._open_files[fd]
        draw = self._rng.random()
        if self._calls_left.get(process) == 1:
            self._real["write"](fd, data[: self._rng.randrange(len(data) + 1)])
        self._changes()
        if draw < self.full:
            self._real["write"](fd, data[: self._rng.randrange(len(data))])
            raise OSError(errno.ENOSPC, "No space left on device")
        if draw > 1 - _SHORT_WRITE:
            data = data[: self._rng.randrange(len(data)) + 1]
        written: int = self._real["write"](fd, data)
        self.on_write(process, path)
        return written

    def _fsync(self, fd: int) -> None:
        self._changes()
        if fd not in self._open_files:
            return
        path = self._open_files[fd][1]
        if Path(path).is_dir():
            self._journal = [(folder, undo) for folder, undo in self._journal if folder != path]
        else:
            found = os.fstat(fd)
            self._synced[found.st_ino] = found.st_size

    def _ftruncate(self, fd: int, length: int) -> None:
        self._changes()
        self._real["ftruncate"](fd, length)
        inode = os.fstat(fd).st_ino
        self._synced[inode] = min(self._synced.get(inode, 0), length)

    def _rename(self, source: Any, target: Any, **more: Any) -> None:
        process = self._changes()
        self._wait(process)
        moved, replaced = self._keep(source), self._keep(target)
        self._real["rename"](source, target, **more)
        for fd, (owner, path) in self._open_files.items():
            if path == str(source):
                self._open_files[fd] = owner, str(target)

        def undo() -> None:
            self._restore(source, moved)
            self._restore(target, replaced)

        self._note(target, undo)
        self.on_write(process, str(target))

    _replace = _rename

    def _link(self, source: Any, target: Any, **more: Any) -> None:
        self._changes()
        self._real["link"](source, target, **more)
        self._note(target, lambda: self._restore(target, None))

    def _unlink(self, path: Any, **more: Any) -> None:
        if not self._is_simulated(path):
            self._alive()
            self._real["unlink"](path, **more)
            return
        self._wait(self._changes())
        kept = self._keep(path)
        self._real["unlink"](path, **more)
        self._note(path, lambda: self._restore(path, kept))

    def _mkdir(self, path: Any, *more: Any, **named: Any) -> None:
        self._changes()
        self._real["mkdir"](path, *more, **named)


class _Raw(io.RawIOBase):
    """The unbuffered file below a file object of the simulated disk."""

    def __init__(self, disk: SimDisk, fd: int) -> None:
        self._disk = disk
        self._fd = fd
        self._owner = disk.owner(fd)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any) -> int:
        # What a dead process had buffered is never written, and its descriptor may be another process's by now.
        if self._disk.owner(self._fd) != self._owner:
            raise Killed
        return os.write(self._fd, bytes(data))

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._disk.owner(self._fd) == self._owner:
                os.close(self._fd)
