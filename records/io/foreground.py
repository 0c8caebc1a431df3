"""Runs another command in the foreground, so that Ctrl-C ends that command in its own time."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Sequence
from types import FrameType

_FORWARDED = (signal.SIGINT, signal.SIGTERM)


def run_foreground(command: Sequence[str]) -> int:
    """Run a command and return its exit status; 128 plus the signal's number if a signal ended it.

    `subprocess.run` kills its child a quarter of a second after Ctrl-C, so that a command could not end what it has
    started. Here, the command has a process group of its own and gets each SIGINT and SIGTERM of this process once.
    Must be called in the main thread.
    """
    pending: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        if process is None:
            pending.append(number)
        else:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
        for number in pending:
            process.send_signal(number)
        status = process.wait()
    finally:
        for number, handler in before.items():
            with contextlib.suppress(TypeError):  # a handler that was not installed from Python cannot be restored
                signal.signal(number, handler)
    return 128 - status if status < 0 else status
