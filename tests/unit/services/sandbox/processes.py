"""Descendants of a process, and waiting for them to end."""

from __future__ import annotations

import re
import time
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """All descendants of the process."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            match = re.search(r"^PPid:\t(\d+)", status.read_text(), re.MULTILINE)
        except OSError:
            continue
        if match:
            parents[int(status.parent.name)] = int(match.group(1))
    found, last = {pid}, 0
    while len(found) > last:
        last = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return sorted(found - {pid})


def wait_until_gone(pids: list[int], timeout_s: float = 120.0) -> list[int]:
    """Wait until none of the processes exists, or for the timeout; return those that are left."""
    for _ in range(int(timeout_s / 0.05)):
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if not left:
            break
        time.sleep(0.05)
    return left
