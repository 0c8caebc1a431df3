"""Files with one writer: locked before they are used, put in place whole, kept through a power cut."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from rollyard.services.errors import RunError

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
_HELD = (errno.EAGAIN, errno.EACCES)


def open_locked(path: Path) -> int:
    """A descriptor of `path`, made if need be, that this process alone has locked. Raises RunError, OSError."""
    while True:
        fd = os.open(path, _FLAGS, 0o644)
        try:
            _lock(fd, path)
            # Between the two calls another writer may have put another file there.
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def replace_locked(path: Path, aside: Path) -> int:
    """Move `path` to `aside` and put an empty file there; its descriptor. Raises RunError, OSError.

    The new file is locked before it has its name: no second writer can take it first.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(fresh, _FLAGS | os.O_TRUNC, 0o644)
    try:
        _lock(fd, fresh)
        try:
            os.link(path, aside, follow_symlinks=False)
        except OSError:  # a file system without hard links
            path.rename(aside)
        fresh.rename(path)
        sync_folder(path.parent)
    except BaseException:
        os.close(fd)
        fresh.unlink(missing_ok=True)
        raise
    return fd


def unused(path: Path) -> Path:
    """`path`, or the first of path.1, path.2, ... that does not exist."""
    candidate, number = path, 0
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}.{number}")
    return candidate


def write_synced(path: Path, data: bytes) -> None:
    """Write a file that survives a power cut from here on."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, on file systems that can."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise RunError(f"{path} is not a regular file: rollouts are read again, so they need one")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise RunError(f"another process is writing {path}: wait for it, or choose another output") from error
        raise RunError(
            f"{path} cannot be locked ({error.strerror}): its file system has no locks (NFS without a lock service?); "
            "choose an output on another one"
        ) from error
