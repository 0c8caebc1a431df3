"""A small process between the model server and vLLM, which ensures that no vLLM process is left behind.

    python reaper.py FOLDER PARENT GRACE_S COMMAND...

* It is a subreaper: orphaned descendants become its children, so it finds every process of the engine.
* If the model server dies, the reaper's standard input closes and the kernel sends it a signal. The reaper then kills
  all processes.
* If vLLM exits, the reaper writes `ended STATUS` to its standard output and kills the remaining processes.
* If the reaper itself dies, its lock on `FOLDER/alive` is released, and vLLM's processes exit (process_guard.py).

It uses only the standard library, so it cannot fail because of a missing package.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

TRACKERS_S = 1.0
"""How long Python's resource trackers may take to unlink the shared memory of processes that died."""
KILL_TIMEOUT_S = 20.0
"""How long processes may take to exit after SIGKILL; those that take longer hang in a driver and cannot be killed."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def main() -> int:
    """Run the command until it exits or a stop is requested, end all processes, and return its exit status (or 128 +
    the signal).
    """
    folder, parent, grace_s, command = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    waker, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return 1
    lock = os.open(folder / "alive", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.environ["ROLLYARD_ENGINE"] = str(folder)
    tree = _ProcessTree(_start(command))
    while tree.status is None:
        readable, _, _ = select.select([0, waker], [], [])
        signals = os.read(waker, 4096) if waker in readable else b""
        if (0 in readable and not os.read(0, 4096)) or any(number != signal.SIGCHLD for number in signals):
            tree.terminate(grace_s)
            break
        tree.reap()
    if tree.status is not None:
        os.write(1, b"ended %d\n" % tree.status)
    tree.end()
    shutil.rmtree(folder, ignore_errors=True)
    status = tree.status if tree.status is not None else -signal.SIGKILL
    return status if status >= 0 else 128 - status


def _start(command: list[str]) -> int:
    reaper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == reaper:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"reaper: cannot start {command[0]!r}: {error.strerror}\n".encode())
    os._exit(127)


class _ProcessTree:
    """The command's process and all its descendants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    def reap(self) -> None:
        """Collect the exit status of children, including adopted orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def terminate(self, grace_s: float) -> None:
        """Send SIGTERM to vLLM and wait up to `grace_s`."""
        self.reap()
        if self.status is None:
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.status is None and time.monotonic() < deadline:
            time.sleep(0.02)
            self.reap()

    def end(self) -> None:
        """Kill all remaining processes."""
        started = time.monotonic()
        while left := _descendants(os.getpid()):
            waited = time.monotonic() - started
            if waited > KILL_TIMEOUT_S:
                os.write(2, f"reaper: processes {left} have not exited after SIGKILL\n".encode())
                return
            for pid in left:
                if waited > TRACKERS_S or not _is_tracker(pid):
                    _kill(pid)
            time.sleep(0.02)
            self.reap()


def _descendants(root: int) -> list[int]:
    """Return every living descendant of `root`."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_bytes().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        # Children of dead processes are already children of this process.
        if state not in b"ZX":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, reached = [], [root]
    while reached:
        direct = children.get(reached.pop(), [])
        found += direct
        reached += direct
    return found


def _is_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
