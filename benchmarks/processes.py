"""Reads the CPU time and memory of processes from /proc."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds (user and system) of all threads of the process, in steps of 10 ms."""
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


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
    listed = (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
    found = [int(child) for child in listed]
    return found + [below for child in found for below in children(child)]


def open_files(pid: int) -> int:
    return sum(1 for _ in (PROC / str(pid) / "fd").iterdir())
