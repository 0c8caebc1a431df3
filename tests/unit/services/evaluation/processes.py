"""Whether a process is over."""

from __future__ import annotations

import time
from pathlib import Path


def ended(process: int) -> None:
    """Wait for a process that was told to end."""
    deadline = time.monotonic() + 120
    while _runs(process):
        assert time.monotonic() < deadline, f"process {process} goes on"
        time.sleep(0.01)


def _runs(process: int) -> bool:
    """Whether it is there, other than as an orphan that nobody has reaped yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
