"""Descendants of a process, and waiting for them to end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.support.waiting import eventually


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


def wait_until_gone(pids: Iterable[int]) -> None:
    """Wait until none of the processes exists. Fails if one still exists at the deadline of tests."""
    eventually(f"end of processes {pids}", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
