"""Executes commands in a box and returns their output. This process is the box's process 1."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from typing import Any

from rollyard.services.sandbox.inside.box.plan import BoxPlan

_DRAIN_S = 0.2
"""How long output is read after the command has exited, in case that a background process still writes."""
_NOT_FOUND = 127


def run(order: dict[str, Any], plan: BoxPlan) -> dict[str, Any]:
    """Run the command of an order until it exits or its time is over. Processes in the background continue."""
    deadline = time.monotonic() + order["timeout_s"]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _execute(order, plan, writer)
    os.close(writer)
    os.set_blocking(reader, False)
    output = _Output(order["output_limit"])
    status: int | None = None
    while status is None and time.monotonic() < deadline:
        _read_ready(reader, output, min(0.05, max(deadline - time.monotonic(), 0)))
        status = _reap(child)
    timed_out = status is None
    if timed_out:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    end = time.monotonic() + _DRAIN_S
    while _read_ready(reader, output, 0.0) and time.monotonic() < end:
        pass
    os.close(reader)
    code = -1 if status is None else os.waitstatus_to_exitcode(status)
    return {"exit_code": code, "timed_out": timed_out, "output": output.text(), "output_dropped": output.dropped}


def kill_all() -> None:
    """Kill every other process of the box."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _reap(child: int) -> int | None:
    """Wait for all processes that have exited; return the status of `child` if it is one of them."""
    status = None
    while True:
        try:
            pid, found = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == child:
            status = found


def _read_ready(reader: int, output: _Output, wait_s: float) -> bool:
    """Read once if there is output within `wait_s`. Return whether there may be more."""
    if not select.select([reader], [], [], wait_s)[0]:
        return False
    with contextlib.suppress(BlockingIOError):
        if piece := os.read(reader, 1 << 16):
            output.add(piece)
            return True
        time.sleep(min(wait_s, 0.005))  # closed by the command, which still runs
    return False


def _execute(order: dict[str, Any], plan: BoxPlan, writer: int) -> None:
    try:
        os.setsid()
        devnull = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((devnull, 0), (writer, 1), (writer, 2)):
            os.dup2(source, target)
        _limit(plan)
        os.chdir(order["cwd"])
        argv, environment = order["argv"], order["env"]
        os.execvpe(argv[0], argv, environment)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(_NOT_FOUND)


def _limit(plan: BoxPlan) -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: plan.memory,
        resource.RLIMIT_FSIZE: plan.storage,
        resource.RLIMIT_NOFILE: plan.open_files,
        resource.RLIMIT_NPROC: plan.processes,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("1000")  # if the host runs out of memory, the kernel ends the command and not the box


class _Output:
    """The start and the end of a command's output."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._start = bytearray()
        self._end = bytearray()
        self.dropped = 0
        """Number of bytes between start and end that were dropped."""

    def add(self, piece: bytes) -> None:
        room = self._half - len(self._start)
        self._start += piece[:room]
        self._end += piece[room:] if room > 0 else piece
        if (excess := len(self._end) - self._half) > 0:
            self.dropped += excess
            del self._end[:excess]

    def text(self) -> str:
        start, end = (bytes(part).decode(errors="replace") for part in (self._start, self._end))
        return f"{start}\n[{self.dropped} bytes omitted]\n{end}" if self.dropped else start + end
