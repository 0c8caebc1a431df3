"""Checks that a folder can be written, without creating it, and opens files that only their owner can read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from rollyard.records.errors import OperatorError


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


def open_private(path: Path, flags: int = os.O_APPEND) -> BinaryIO:
    """Open a file for writing; if it is new, only its owner can read it. Raises OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600), "wb")


def set_default_mode(files: Iterable[Path]) -> None:
    """Set the mode of new files, because safetensors writes files that only their owner can read. Raises OSError."""
    mask = os.umask(0o077)
    os.umask(mask)
    for file in files:
        file.chmod(0o666 & ~mask)
