"""Heartbeat: a file whose time of modification shows until when a job was alive, even if it was killed."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

INTERVAL_S = 10.0


class Heartbeat:
    """The file of one start of a job. Errors are ignored, since the file only improves the account of running time."""

    def __init__(self, folder: Path, job_id: str, restart: int) -> None:
        self._path = folder / f".alive-{job_id}-{restart}"
        self._next = 0.0

    def beat(self) -> None:
        """Set the file's time, at most every INTERVAL_S."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + INTERVAL_S
        with contextlib.suppress(OSError):
            self._path.touch()
            os.utime(self._path)

    def last(self) -> float | None:
        """Return the Unix time of the last beat; None if there was none."""
        try:
            return self._path.stat().st_mtime
        except OSError:
            return None

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
