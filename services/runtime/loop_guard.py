"""Guards a process's event loop against its server's code: code that blocks it, and children that go on serving."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import sys
import threading
import time
import traceback
from pathlib import Path

from rollyard.services.http.loop_lag import LoopLag

log = logging.getLogger(__name__)

BLOCKED_S = 5.0
"""A loop that is blocked for so long is reported: the other episodes of the server wait meanwhile."""
LOOK_EVERY_S = 1.0
_SHOWN_FRAMES = 8


def guard_loop(lag: LoopLag, name: str, blocked_s: float = BLOCKED_S) -> None:
    """Guard the running loop, which is that of the server `name`, until the process ends."""
    loop = asyncio.get_running_loop()
    threading.Thread(target=_report_blocks, args=(lag, name, threading.get_ident(), blocked_s), daemon=True).start()
    os.register_at_fork(after_in_child=lambda: _abandon(loop, name))


def _report_blocks(lag: LoopLag, name: str, thread: int, blocked_s: float) -> None:
    """Log once per block where the code is that blocks the loop."""
    reported = False
    while True:
        time.sleep(min(LOOK_EVERY_S, blocked_s / 4))
        late_s = lag.late_s
        if late_s < blocked_s:
            reported = False
        elif not reported and (frame := sys._current_frames().get(thread)) is not None:
            reported = True
            where = "".join(traceback.format_list(traceback.extract_stack(frame)[-_SHOWN_FRAMES:]))
            log.error(
                "%s has blocked its event loop for %.0f s, so that all its other episodes wait; use `await "
                "asyncio.to_thread(...)` for such work. It is at:\n%s",
                *(name, late_s, where.rstrip()),
            )


def _abandon(loop: asyncio.AbstractEventLoop, name: str) -> None:
    """Prevent a forked child from serving: it would take requests and connections away from its parent.

    A child that ends in the code that forked it, like those of multiprocessing, never returns to the loop.
    """

    def leave() -> None:
        os.write(2, f"{name}: a forked child returned to the server's event loop and was ended\n".encode())
        os._exit(1)

    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (int(entry.name) for entry in Path("/dev/fd").iterdir()):
            if _is_network(fd):
                os.dup2(null, fd, inheritable=False)
        os.close(null)
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon(leave)


def _is_network(fd: int) -> bool:
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            with socket.socket(fileno=os.dup(fd)) as sock:
                return sock.family in (socket.AF_INET, socket.AF_INET6)
    return False
