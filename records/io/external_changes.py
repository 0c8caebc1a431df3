"""Detects whether another program moved, removed, replaced, truncated or extended a file that this process has open."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rollyard.records.io.locked_files import sync_folder, unused

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
