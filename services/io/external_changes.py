"""What other programs did to a file that this process has open: moved, removed, replaced, cut, or written to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rollyard.services.io.locked_files import sync_folder, unused

_CHUNK = 1 << 20


def outside_change(fd: int, path: Path, size: int) -> str:
    """What happened to the open file and what is whole where, one line; empty while `path` is that file with `size`.

    A file without a name left is copied beside `path` first: its content would be gone with the descriptor.
    """
    found = os.fstat(fd)
    if found.st_size < size:
        return (
            f"{path} was cut from {size} to {found.st_size} bytes by another program while it was being written; what "
            "is left is whole but for the last line. The same command collects what is missing"
        )
    if found.st_size > size:
        return (
            f"{path} grew by {found.st_size - size} bytes that this command did not write; everything before byte "
            f"{size} is whole. Find the program that writes to it, delete its lines, then the same command goes on"
        )
    try:
        standing = path.stat()
    except OSError:
        standing = None
    if standing is not None and os.path.samestat(found, standing):
        return ""
    what = "removed" if standing is None else "replaced by another file"
    if (there := moved_to(fd)) is not None:
        also = "" if standing is None else " and another file was put in its place"
        return (
            f"{path} was moved to {there}{also} while it was being written: that file is whole. Move it back, then the "
            "same command goes on"
        )
    if not size:
        return f"{path} was {what} while it was open; nothing was in it. The same command goes on"
    for folder in (path.parent, Path.cwd(), Path(tempfile.gettempdir())):
        try:
            copy = _recovered(fd, folder / f"{path.stem}_recovered{path.suffix}")
        except OSError as error:
            why = error.strerror
            continue
        return (
            f"{path} was {what} while it was being written: what it held is whole in {copy}. Move that to {path}, then "
            "the same command goes on"
        )
    return f"{path} was {what} while it was being written, and what it held could not be copied anywhere ({why})"


def moved_to(fd: int) -> Path | None:
    """The name that the open file has now; None where it has none that is known."""
    try:
        there = Path(f"/proc/self/fd/{fd}").readlink()
        # An NFS client gives a removed file such a name until it is closed.
        if there.name.startswith(".nfs") or not os.path.samestat(os.fstat(fd), there.stat()):
            return None
    except OSError:
        return None
    return there


def _recovered(fd: int, copy: Path) -> Path:
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
