"""Checks that a folder can be written, without creating it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rollyard.services.errors import OperatorError


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
