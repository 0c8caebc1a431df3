"""Files with a single writer: locked before use, replaced atomically, and synced to survive a power failure."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rollyard.records.errors import RunError


class LocksUnsupported(RunError):
    """The file system of a file does not support flock."""


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
_LOCKED_ERRNOS = (errno.EAGAIN, errno.EACCES)


def open_locked(path: Path) -> int:
    """Open `path` (creating it if needed) and lock it exclusively.

    Raises RunError if it cannot be locked or another process has locked it, OSError if it cannot be opened.
    """
    while True:
        fd = os.open(path, _FLAGS, 0o644)
        try:
            _lock(fd, path)
            # Another writer may have replaced the file between opening and locking it.
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def open_unshared(path: Path) -> int:
    """Open a file that no other process writes, such as one with a unique name; lock it if the file system can.

    Raises as `open_locked`, except if the file system does not support locks.
    """
    try:
        return open_locked(path)
    except LocksUnsupported:
        return os.open(path, _FLAGS, 0o644)


def replace_locked(path: Path, backup: Path, content: Iterable[bytes] = ()) -> int:
    """Move `path` to `backup`, put a new, locked file with `content` in its place and return its descriptor.

    The caller holds the lock on `path`. The new file is locked, and its content synced, before it gets its name, so
    that no other writer can lock it first and a crash leaves one of the two complete. Raises RunError if it cannot be
    locked, OSError if a file cannot be created, written or renamed.
    """
    temporary = path.with_name(f".{path.name}.new")  # a fixed name, so that crashes do not leave one file each
    fd = os.open(temporary, _FLAGS | os.O_TRUNC, 0o644)
    try:
        _lock(fd, temporary)
        with os.fdopen(os.dup(fd), "wb") as file:
            file.writelines(content)
        os.fsync(fd)
        try:
            os.link(path, backup, follow_symlinks=False)
        except OSError:  # a file system without hard links
            path.rename(backup)
        temporary.rename(path)
        sync_folder(path.parent)
    except BaseException:
        os.close(fd)
        temporary.unlink(missing_ok=True)
        raise
    return fd


def unused(path: Path) -> Path:
    """Return `path`, or the first of path.1, path.2, ... that does not exist."""
    candidate, number = path, 0
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}.{number}")
    return candidate


def write_synced(path: Path, data: bytes) -> None:
    """Write a file. Once this function has returned, the file survives a power failure."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power failure, on file systems that support it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(folder: Path) -> None:
    """Make all files and folders in a folder survive a power failure."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def _lock(fd: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise RunError(f"{path} is not a regular file, which is required because rollouts are read back from it")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKED_ERRNOS:
            raise RunError(f"another process is writing to {path}: wait for it, or choose another output") from error
        raise LocksUnsupported(
            f"{path} cannot be locked ({error.strerror}): its file system does not support locks (NFS without lockd?); "
            "choose an output on another file system"
        ) from error
