"""Files with a single writer: locked before use, replaced atomically, and synced to survive a power failure.

It detects that another program moved, truncated or replaced an open file, and saves the content of a removed one. It
also checks that a folder can be written, and opens files that only their owner can read.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from rollyard.records.errors import OperatorError, RunError


class LocksUnsupported(RunError):
    """The file system of a file does not support flock."""


class InUse(RunError):
    """Another process has locked a file."""


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
_LOCKED_ERRNOS = (errno.EAGAIN, errno.EACCES)


def open_locked(path: Path, mode: int = 0o644) -> int:
    """Open `path` (creating it if needed) and lock it exclusively.

    Raises InUse if another process has locked it, RunError if it cannot be locked, OSError if it cannot be opened.
    """
    while True:
        fd = os.open(path, _FLAGS, mode)
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


def is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _LOCKED_ERRNOS
    finally:
        os.close(fd)
    return False


def replace_locked(path: Path, backup: Path, content: Iterable[bytes] = ()) -> int:
    """Move `path` to `backup`, put a new, locked file with `content` in its place and return its descriptor.

    The caller holds the lock on `path`. The new file is locked, and its content synced, before it gets its name, so
    that no other writer can lock it first and a crash leaves one of the two complete. Raises RunError if it cannot be
    locked, OSError if a file cannot be created, written or renamed.
    """
    temporary = unfinished(path)
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


def unfinished(path: Path) -> Path:
    """Return where `replace_locked` writes the new file."""
    return path.with_name(f".{path.name}.new")


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


def sync_file(path: Path) -> None:
    """Make what any process has written to a file survive a power failure."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
            sync_file(path)
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
            raise InUse(f"another process is writing to {path}: wait for it, or choose another output") from error
        raise LocksUnsupported(
            f"{path} cannot be locked ({error.strerror}): its file system does not support locks (NFS without lockd?); "
            "choose another file system"
        ) from error


def append_line(fd: int, line: bytes) -> None:
    """Write a line at the end of a file that is open for reading and appending, and locked. Raises OSError, without a
    part of the line in the file.
    """
    size = os.fstat(fd).st_size
    torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
    data = b"\n" + line if torn else line  # a writer that was killed left an incomplete line, which stays as it is
    try:
        if os.write(fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(fd, size)
        raise


# Detects whether another program moved, removed, replaced, truncated or extended a file that this process has open.

_CHUNK = 1 << 20


def outside_change(fd: int, path: Path, size: int) -> str:
    """Describe in one line what happened to the open file and where its content is now; "" if nothing happened.

    The file is unchanged if `path` still refers to it and it has `size` bytes. If the file no longer has a name, it is
    copied next to `path`, because its content would be lost once the descriptor is closed.
    """
    opened = os.fstat(fd)
    if opened.st_size < size:
        return (
            f"{path} was truncated from {size} to {opened.st_size} bytes by another program during the collection; the "
            "rest is intact except for the last line. Run the same command again to collect what is missing"
        )
    if opened.st_size > size:
        return (
            f"{path} grew by {opened.st_size - size} bytes that this command did not write; everything before byte "
            f"{size} is intact. Find the program that writes to it, delete its lines, then run the same command again"
        )
    try:
        current = path.stat()
    except OSError:
        current = None
    if current is not None and os.path.samestat(opened, current):
        return ""
    event = "removed" if current is None else "replaced by another file"
    if (new_path := current_path(fd)) is not None:
        replacement = "" if current is None else " and another file was put in its place"
        return (
            f"{path} was moved to {new_path}{replacement} while it was being written; its content is intact. Move it "
            "back, then run the same command again"
        )
    if not size:
        return f"{path} was {event} while it was still empty. Run the same command again"
    for folder in (path.parent, Path.cwd(), Path(tempfile.gettempdir())):
        try:
            copy = _copy_content(fd, folder / f"{path.stem}_recovered{path.suffix}")
        except OSError as error:
            reason = error.strerror
            continue
        return (
            f"{path} was {event} while it was being written: its content is intact in {copy}. Move that file to "
            f"{path}, then run the same command again"
        )
    return f"{path} was {event} while it was being written, and its content could not be copied anywhere ({reason})"


def current_path(fd: int) -> Path | None:
    """Return the current path of the open file; None if it was removed or the path is unknown."""
    try:
        new_path = Path(f"/proc/self/fd/{fd}").readlink()
        # If an open file is removed, an NFS client gives it a name like this until it is closed.
        if new_path.name.startswith(".nfs") or not os.path.samestat(os.fstat(fd), new_path.stat()):
            return None
    except OSError:
        return None
    return new_path


def _copy_content(fd: int, copy: Path) -> Path:
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy = unused(copy)
    offset = 0
    try:
        with copy.open("xb") as file:
            while piece := os.pread(fd, _CHUNK, offset):
                file.write(piece)
                offset += len(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        copy.unlink(missing_ok=True)
        raise
    sync_folder(copy.parent)
    return copy


def check_writable(folder: Path, shown: str) -> Path:
    """Return the nearest existing folder, `folder` or one above it. Raises OperatorError if it cannot be written.

    `shown`: the setting with its value, for the message.
    """
    parent = folder
    while not parent.exists():
        parent = parent.parent
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        raise OperatorError(f"{shown} cannot be written: {error.strerror} ({parent})") from error
    return parent


def open_private(path: Path, flags: int = os.O_APPEND, *, mode: int = 0o600) -> BinaryIO:
    """Open a file for writing; if it is new, only its owner can read it, or who `mode` allows. Raises OSError."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | flags, mode), "wb")


def set_default_mode(files: Iterable[Path]) -> None:
    """Set the mode of new files, because safetensors writes files that only their owner can read. Raises OSError."""
    mask = os.umask(0o077)
    os.umask(mask)
    for file in files:
        file.chmod(0o666 & ~mask)
