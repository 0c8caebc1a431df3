"""Gives files the mode of new ones. The package safetensors writes files that only their owner can read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def set_default_mode(files: Iterable[Path]) -> None:
    """Set the mode that a new file gets under this process's umask. Raises OSError."""
    mask = os.umask(0o077)
    os.umask(mask)
    for file in files:
        file.chmod(0o666 & ~mask)
