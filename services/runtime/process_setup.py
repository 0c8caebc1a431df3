"""What a process of this stack asks of the machine: end with its parent, many sockets, a calm garbage collector."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to end this process when its parent dies, whatever the parent died of."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the process that started this server is gone already")


def raise_file_limit() -> int:
    """As many open files as the system lets this process have: each episode in flight takes a few sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def tune_gc() -> None:
    """What exists now lives for ever, and short-lived JSON needs no search for cycles every 700 objects.

    A full collection walks through every conversation in memory while the event loop waits: a thousand million new
    objects pass between two of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 2_000)
