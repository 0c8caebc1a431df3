"""Record types of the shell box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rollyard.records.types import Record


class BoxLimits(Record):
    """Limits of one box."""

    storage_mb: int = Field(default=512, ge=1)
    """Size of all files that the box writes; they are kept in memory."""
    memory_mb: int = Field(default=4096, ge=64)
    """Address space of each process."""
    processes: int = Field(default=256, ge=4)
    """Maximum number of simultaneous processes and threads."""
    open_files: int = Field(default=1024, ge=16)
    """Maximum number of open files of each process."""
    output_kb: int = Field(default=64, ge=1)
    """Maximum size of a command's output; of a longer one, the start and the end are kept."""


class CommandResult(Record):
    """How a command ended."""

    exit_code: int
    """Negative: the number of the signal that ended it. -1 if its time was over."""
    output: str
    """Standard output and error, in the order in which they were written."""
    timed_out: bool = False
    output_dropped: int = 0
    """Number of bytes in the middle of the output that were dropped."""


class BoxEntry(Record):
    """A file, folder or link to write."""

    path: str
    kind: Literal["file", "folder", "link"]
    data: bytes = b""
    mode: int | None = None
    """Permissions; None: the default."""
    target: str = ""
    """Where a link leads."""


def total_bytes(entries: Sequence[BoxEntry]) -> int:
    """Return the size of all files."""
    return sum(len(entry.data) for entry in entries)
