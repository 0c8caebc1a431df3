"""Reads the CPU time and memory of processes from /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds (user and system) of all threads of the process, in steps of 10 ms."""
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def family_cpu_s(pid: int) -> float:
    """Return the CPU seconds of the process and all its descendants, including those that have ended."""
    ticks = 0
    for member in (pid, *children(pid)):
        with contextlib.suppress(OSError):
            # The last two are those of the children for which it has waited.
            ticks += sum(map(int, (PROC / str(member) / "stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / TICKS


def memory_mb(pid: int) -> tuple[float, float]:
    """Return RSS and PSS in MB. PSS counts a page shared by n processes as 1/n, so that sums are exact."""
    found = {"Rss:": 0, "Pss:": 0}
    for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        key, *rest = line.split()
        if key in found:
            found[key] = int(rest[0])
    return found["Rss:"] / 1024, found["Pss:"] / 1024


def rss_mb(pid: int) -> float:
    """Return the RSS in MB; fast enough for sampling."""
    pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def host_cpu_s() -> tuple[float, float]:
    """Return the busy and the total CPU seconds of all cores since boot."""
    fields = [int(field) for field in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / TICKS, sum(fields) / TICKS


def children(pid: int) -> list[int]:
    """Return all descendants of the process, excluding itself."""
    # Only a process's own threads list it, and one that ends meanwhile has no children.
    listed: list[int] = []
    for path in (PROC / str(pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):
            listed += map(int, path.read_text().split())
    return listed + [below for child in listed for below in children(child)]


def with_variable(name: str, value: str) -> list[int]:
    """Return the processes whose environment has this variable, which descendants inherit."""
    entry, found = f"{name}={value}".encode(), []
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def open_files(pid: int) -> int:
    return sum(1 for _ in (PROC / str(pid) / "fd").iterdir())
