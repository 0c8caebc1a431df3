"""Files with a single writer: locked before use, replaced atomically, and synced to survive a power failure."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from rollyard.services.errors import RunError

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


def replace_locked(path: Path, backup: Path) -> int:
    """Move `path` to `backup`, create an empty, locked file in its place and return its descriptor.

    The new file is locked before it gets its name, so that no other writer can lock it first. Raises RunError if it
    cannot be locked, OSError if a file cannot be created or renamed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, _FLAGS | os.O_TRUNC, 0o644)
    try:
        _lock(fd, temporary)
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


def _lock(fd: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise RunError(f"{path} is not a regular file, which is required because rollouts are read back from it")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKED_ERRNOS:
            raise RunError(f"another process is writing to {path}: wait for it, or choose another output") from error
        raise RunError(
            f"{path} cannot be locked ({error.strerror}): its file system does not support locks (NFS without lockd?); "
            "choose an output on another file system"
        ) from error
