"""Runs a command in its own process group and kills all its processes when stdin closes because the parent has exited.

    python -I process_group.py FOLDER lm_eval ...

A parent killed with SIGKILL cannot clean up, and vLLM's engine, a grandchild, would keep the GPU occupied. This process
is a subreaper: descendants whose parents have exited become its children, so it finds all of them, also those that
have started their own session. It forwards SIGINT, SIGTERM and SIGUSR1 to the command, and kills what is left when the
command exits. Then it removes FOLDER, the command's temporary one (empty: it has none). It uses only the standard
library, so that it can run without the package.

Every program that starts another one with descendants does it through `guarded`: with asyncio as a `Program`, without
by `start` and `end`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
OPEN_FILES = 65535
"""Number of open files that vLLM wants; with fewer, it logs a warning."""
TRACKERS_S = 1.0
"""How long Python's resource trackers may take to unlink the shared memory of killed processes."""
KILL_TIMEOUT_S = 20.0
"""How long processes may take to exit after SIGKILL; those that take longer hang in a driver."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def guarded(command: Sequence[str], temporary: Path | None = None) -> list[str]:
    """Return the command line of `command` under this guard, which needs a pipe as its standard input.

    `temporary`: a folder to remove once the last process has ended.
    """
    return [sys.executable, "-I", __file__, str(temporary or ""), *command]


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start `command` under its guard, in a session of its own: Ctrl-C reaches this process alone. Raises OSError."""
    return subprocess.Popen(guarded(command), stdin=subprocess.PIPE, start_new_session=True, **options)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill what is left of a process that `start` has started, and wait for it."""
    assert process.stdin is not None
    process.stdin.close()  # the guard kills everything that the command has started, and itself
    process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # if the guard was killed


def main() -> int:
    temporary, *line = sys.argv[1:]
    waker, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        command = subprocess.Popen(line, stdin=subprocess.DEVNULL, preexec_fn=_prepare)
    except OSError as error:
        print(f"cannot start {line[0]}: {error.strerror}", file=sys.stderr)
        _remove(temporary)
        return 127
    while command.poll() is None:
        readable, _, _ = select.select([0, waker], [], [])
        if 0 in readable and not os.read(0, 4096):
            kill_descendants()
            _remove(temporary)
            os.killpg(os.getpgid(0), signal.SIGKILL)
        for byte in os.read(waker, 4096) if waker in readable else b"":
            if byte in FORWARDED and command.poll() is None:
                command.send_signal(byte)
        _reap_orphans(command.pid)
    kill_descendants()
    _remove(temporary)
    return command.returncode if command.returncode >= 0 else 128 - command.returncode


def _prepare() -> None:
    """Run in the child: let it die with this process, and raise its limit on open files as far as possible."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(hard, OPEN_FILES), hard):
        with contextlib.suppress(ValueError, OSError):  # only root may raise the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return


def _remove(folder: str) -> None:
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _reap_orphans(command: int) -> None:
    """Collect the exit status of adopted processes. That of the command is left to `subprocess`."""
    for pid in _children(os.getpid()):
        if pid != command:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def kill_descendants() -> None:
    """Kill every descendant and wait until none is left."""
    started = time.monotonic()
    while left := [pid for pid in _descendants(os.getpid()) if start_ticks(pid)]:
        waited = time.monotonic() - started
        if waited > KILL_TIMEOUT_S:
            return
        for pid in left:
            if waited > TRACKERS_S or not _is_tracker(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        for pid in _children(os.getpid()):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:  # grows while it is read
        found += _children(child)
    return found


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _is_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
