"""Ends processes that an earlier, killed evaluation of the same folder has left behind.

Normally there are none: a stage's process group dies with `ng_eval`. This covers the case in which the leader of the
group was killed as well. Every process of an evaluation inherits a variable with its id, by which it is recognized.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "ROLLYARD_EVAL"
"""Environment variable with the evaluation's id."""
TIMEOUT_S = 20.0


async def end_leftovers(run_id: str) -> int:
    """Kill the processes of the evaluation `run_id`, wait until they are gone, and return how many there were."""
    found = await asyncio.to_thread(_marked, run_id)
    left, deadline = found, time.monotonic() + TIMEOUT_S
    while left and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.05)
        left = await asyncio.to_thread(_marked, run_id)
    return len(found)


def _marked(run_id: str) -> list[int]:
    entry = f"{MARK}={run_id}".encode()
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(process.name) == os.getpid() or process.stat().st_uid != os.geteuid():
                continue
            zombie = (process / "stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"
            if not zombie and entry in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found
