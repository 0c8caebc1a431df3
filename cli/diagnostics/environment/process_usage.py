"""Reads what a server's process and its descendants use, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    """What a process tree uses at one time. A process that exits while it is read is left out."""

    cpu_s: float
    """CPU time of all living processes and of the children that they waited for."""
    memory: int
    """Resident bytes; pages that processes share count once for each."""
    files: int
    """Open file descriptors."""
    processes: int
    threads: int


def usage_of(pid: int) -> Usage:
    """Return what the process and its descendants use. Raises ProcessLookupError if the process has exited."""
    found = [one for process in _tree(pid) if (one := _one(process)) is not None]
    if not found:
        raise ProcessLookupError(f"process {pid} has exited")
    return Usage(
        cpu_s=sum(one.cpu_s for one in found),
        memory=sum(one.memory for one in found),
        files=sum(one.files for one in found),
        processes=len(found),
        threads=sum(one.threads for one in found),
    )


def _tree(pid: int) -> Iterator[int]:
    parents: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*"):
        try:
            parent = int(_stat(int(entry.name))[1])
        except (OSError, ValueError, IndexError):
            continue
        parents.setdefault(parent, []).append(int(entry.name))
    pending = [pid]
    while pending:
        yield (process := pending.pop())
        pending += parents.get(process, [])


def _stat(pid: int) -> list[str]:
    """Return the fields after the command name, which is in parentheses and may contain anything."""
    return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _one(pid: int) -> Usage | None:
    try:
        fields = _stat(pid)
        ticks, threads = sum(int(field) for field in fields[11:15]), int(fields[17])
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    try:
        files = len(os.listdir(_PROC / str(pid) / "fd"))  # noqa: PTH208 (only the number matters)
    except OSError:  # a jail runs as another user
        files = 0
    return Usage(ticks / _TICKS_PER_S, pages * _PAGE, files, 1, threads)
