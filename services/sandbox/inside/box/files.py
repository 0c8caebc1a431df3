"""Writes, reads and removes files in a box, for the server."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import stat
from typing import Any


def write(entries: list[dict[str, Any]]) -> None:
    """Create the folders, files and links, each with its parents. An existing file is replaced. Raises OSError."""
    for entry in entries:
        path = entry["path"]
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)  # noqa: PTH103, PTH120
        if entry["kind"] == "folder":
            os.makedirs(path, exist_ok=True)  # noqa: PTH103
        elif entry["kind"] == "link":
            _unlink(path)
            os.symlink(entry["target"], path)  # noqa: PTH211
        else:
            _unlink(path)
            opened = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
            with os.fdopen(opened, "wb") as file:
                file.write(base64.b64decode(entry["data"]))
        if entry["kind"] != "link" and entry["mode"] is not None:
            os.chmod(path, entry["mode"])  # noqa: PTH101


def read(path: str, limit: int) -> dict[str, Any]:
    """Return the first `limit` bytes of a regular file, or why there is none."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return {"missing": f"{path}: {error.strerror}"}
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        return {"missing": f"{path} is not a regular file"}
    with os.fdopen(opened, "rb") as file:
        return {"data": base64.b64encode(file.read(limit)).decode()}


def remove(path: str) -> None:
    """Remove a file, a link or a folder with its content, if it exists. Raises OSError."""
    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
        shutil.rmtree(path)
    else:
        _unlink(path)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108
