"""Whether processes run, and waiting for them to end."""

from __future__ import annotations

import time
from pathlib import Path


def wait_for_end(pid: int) -> None:
    """Wait until the process ends; fail after two minutes."""
    deadline = time.monotonic() + 120
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still running"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
