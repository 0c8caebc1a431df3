"""Which processes there are below another, and waiting for their end."""

from __future__ import annotations

import re
import time
from pathlib import Path


def descendants(process: int) -> list[int]:
    """Processes below `process`."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            found = re.search(r"^PPid:\t(\d+)", status.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found:
            parents[int(status.parent.name)] = int(found.group(1))
    below, last = {process}, 0
    while len(below) > last:
        last = len(below)
        below |= {child for child, parent in parents.items() if parent in below}
    return sorted(below - {process})


def until_alive(processes: list[int], wanted: int, patience_s: float = 120.0) -> list[int]:
    """Those alive, as soon as they are at most `wanted`, or when patience ends."""
    for _ in range(int(patience_s / 0.05)):
        alive = [number for number in processes if Path(f"/proc/{number}").exists()]
        if len(alive) <= wanted:
            break
        time.sleep(0.05)
    return alive
