"""Identifies this process as the owner of leases, and decides which owners are gone."""

from __future__ import annotations

import math
import os
import re
import socket
import time
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from rollyard.records.errors import OperatorError
from rollyard.services.rollouts.shared.shared_records import Heartbeat, Lease, Owner

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CACHED_S = 0.05


def this_owner(worker: str, job: str = "") -> Owner:
    """Return this process as an owner with a new token. Raises OperatorError if the name cannot be a file name."""
    if not _NAME.fullmatch(worker):
        raise OperatorError(
            f"worker is {worker!r}; expected 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        )
    return Owner(
        worker=worker,
        token=f"{worker}-{uuid.uuid4().hex[:12]}",
        host=socket.gethostname(),
        pid=os.getpid(),
        started=_start_ticks(os.getpid()) or 0,
        machine=_machine(),
        job=job,
    )


def has_exited(owner: Owner) -> bool:
    """Return whether the owner was a process of this machine that no longer runs. False if it cannot be known."""
    if not owner.machine or owner.machine != _machine():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # another user's, whose start may be hidden
    return _start_ticks(owner.pid) != owner.started


class OwnerWatch:
    """Decides whether leases may be taken over, from what this process has seen of their owners' heartbeats.

    Clocks of different hosts are never compared: a lease has expired once its owner's heartbeat has not changed for a
    whole lease, measured by the monotonic clock of this process.
    """

    def __init__(self, workers: Path, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`lease_s`: for owners whose heartbeat is missing or cannot be read."""
        self._workers = workers
        self._lease_s = lease_s
        self._clock = clock
        self._latest: dict[str, tuple[bytes, float]] = {}
        """Token -> the heartbeat that was read last, and the time before it was read."""
        self._unchanged_since: dict[str, tuple[bytes, float]] = {}
        """Token -> the heartbeat, and the time after it was read for the first time."""

    def heartbeat(self, token: str) -> Heartbeat | None:
        """Return the owner's latest heartbeat; None if there is none that can be read."""
        return _parsed(self._read(token)[0])

    def is_free(self, lease: Lease | None, name: str) -> bool:
        """Return whether another worker may take the block.

        `lease`: None if the file of the lease cannot be read. `name`: the name of that file.
        """
        token = name if lease is None else lease.owner.token
        content, now = self._read(token)
        known = _parsed(content)
        if lease is not None:
            if has_exited(lease.owner):
                return True
            if known is not None and (known.ended or (lease.block, lease.generation) in known.released):
                return True
        before, since = self._unchanged_since.get(token, (None, 0.0))
        if before != content:
            self._unchanged_since[token] = (content, self._clock())
            return False
        return now - since > (self._lease_s if known is None else known.lease_s)

    def _read(self, token: str) -> tuple[bytes, float]:
        """Return a heartbeat that was read at most 50 ms ago, and the time before it was read."""
        now = self._clock()
        content, read_at = self._latest.get(token, (b"", -math.inf))
        if now - read_at > _CACHED_S:
            try:
                content = (self._workers / f"{token}.json").read_bytes()
            except OSError:
                content = b""
            self._latest[token] = content, now
            return content, now
        return content, read_at


def _parsed(content: bytes) -> Heartbeat | None:
    try:
        return Heartbeat.model_validate_json(content)
    except ValidationError:
        return None


@cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """Return when the process started; None if it is no longer running."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])
