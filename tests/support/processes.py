"""Processes as /proc shows them, and ports for those that tests start."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path


def alive(pid: int) -> bool:
    """True for a running process; a zombie does not count."""
    return stat_of(pid)[0] not in ("", "Z", "X")


def parent_of(pid: int) -> int:
    """The parent's process id; 0 if the process has ended."""
    return int(stat_of(pid)[1])


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; `["", "0"]` if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["", "0"]


def processes_with(variable: str, value: str) -> Iterator[int]:
    """Running processes whose environment has this variable, which descendants inherit."""
    entry = f"{variable}={value}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry in (process / "environ").read_bytes().split(b"\0") and alive(int(process.name)):
                yield int(process.name)


def free_port() -> int:
    """A port at which nobody listens, outside the range from which the kernel gives one to whoever asks for any: such a
    port could be taken by another process before the program that a test starts listens at it.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
