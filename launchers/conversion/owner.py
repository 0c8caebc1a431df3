"""Which process owns a lock, and whether it still runs."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from rollyard.records.types import Record

_ENDED = "ended"


class Owner(Record):
    """A process. Its id alone does not identify it: ids are reused, and containers have their own."""

    host: str
    boot_id: str
    """The kernel's id of this start of the host."""
    pid_namespace: str
    pid: int
    start_time: str
    """In clock ticks since the start of the host; "" if unknown."""
    job_id: str = ""
    """Of SLURM."""
    created: str
    id: str

    @property
    def shown(self) -> str:
        """The owner as shown in messages."""
        job = f" (SLURM job {self.job_id})" if self.job_id else ""
        return f"process {self.pid} on {self.host}{job}, since {self.created}"


def this_process(environ: Mapping[str, str]) -> Owner:
    """Describe the current process."""
    return Owner(
        host=socket.gethostname(),
        boot_id=_boot_id(),
        pid_namespace=_pid_namespace(),
        pid=os.getpid(),
        start_time=_start_time(os.getpid()) or "",
        job_id=environ.get("SLURM_JOB_ID", ""),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        id=uuid.uuid4().hex,
    )


def is_running(owner: Owner) -> bool | None:
    """Return whether the owner runs; None if this cannot be known here, because it is on another host."""
    if not owner.boot_id or (owner.boot_id, owner.pid_namespace) != (_boot_id(), _pid_namespace()):
        return None
    if not _exists(owner.pid):
        return False
    started = _start_time(owner.pid)
    if started is None and _exists(owner.pid):
        return None  # /proc is mounted with hidepid
    return started not in (None, _ENDED) and owner.start_time in ("", started)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def _boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _pid_namespace() -> str:
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def _start_time(pid: int) -> str | None:
    """Return a process's start time, _ENDED if it only waits for its parent, None if it does not exist or is hidden."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _ENDED if fields[0] in "ZX" else fields[19]
