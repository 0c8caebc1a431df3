"""Runs one job: creates a jail, monitors it from outside, kills all its processes, and reports the result.

The answer cannot see this process, which runs in a different process namespace and has its own file descriptors.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
import traceback
from typing import Any

from rollyard.services.sandbox.inside import jail, libc
from rollyard.services.sandbox.inside.deadline import DeadlineClock
from rollyard.services.sandbox.inside.jail_plan import Plan
from rollyard.services.sandbox.inside.test_runner import run_tests

_REPORT_BYTES = 64 * 1024
_REPORT_GRACE_S = 1.0


def watch(plan: Plan, job: int) -> None:
    """Run the job on socket `job`: the tests' process reads the order, and this process writes the result."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    started = time.monotonic()
    try:
        if plan.namespaces:
            jail.enter_namespaces()
        ended, report, output, cut, cpu_s = _run_jail(plan, job)
    except OSError as error:
        ended, report, output, cut, cpu_s = "no_jail", {"reason": str(error)}, b"", False, 0.0
    result = {
        "ended": ended,
        "report": report,
        "output": output.decode(errors="replace"),
        "output_cut": cut,
        "cpu_s": round(cpu_s, 4),
        "wall_s": round(time.monotonic() - started, 4),
    }
    with socket.socket(fileno=job) as server, contextlib.suppress(OSError):  # the server may have disconnected
        server.sendall(json.dumps(result).encode())
        server.shutdown(socket.SHUT_WR)
        # Drain the socket, because unread parts of the order would reset the connection and lose the result.
        while server.recv(1 << 16):
            pass


def _run_jail(plan: Plan, job: int) -> tuple[str, dict[str, Any], bytes, bool, float]:
    report_in, report_out = os.pipe()
    output_in, output_out = os.pipe()
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)  # opened first, because the jail hides it
    child = os.fork()
    if child == 0:
        _run_tests(plan, job, report_out, output_out, (report_in, output_in, proc))
    os.close(report_out)
    os.close(output_out)
    report, output = PipeReader(report_in, _REPORT_BYTES), PipeReader(output_in, plan.output)
    try:
        ended = _wait(DeadlineClock(plan.wall_s, proc, child), job, report, output)
    finally:
        # Killing process 1 ends its namespace. Without namespaces, forking is forbidden, so the group is complete.
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
        _, _, used = os.wait4(child, 0)
    for reader in (report, output):
        reader.read()
    try:
        parsed_report = json.loads(report.data)
    except ValueError:
        parsed_report = {}
    return ended, parsed_report, output.data, output.cut, used.ru_utime + used.ru_stime


def _wait(clock: DeadlineClock, job: int, report: PipeReader, output: PipeReader) -> str:
    """Wait until the tests' process exits, the deadline passes or the server disconnects. Return which one happened.

    Reporting is the last thing that the tests' process does, so the deadline no longer applies once a report arrives.
    """
    alive = libc.pidfd_open(clock.child)
    poll = select.poll()
    poll.register(alive, select.POLLIN)
    poll.register(job, select.POLLRDHUP)
    by_number = {reader.descriptor: reader for reader in (report, output)}
    for number in by_number:
        poll.register(number, select.POLLIN)
    try:
        while report.data or clock.left() > 0:
            ready = poll.poll(1000 * (_REPORT_GRACE_S if report.data else clock.wait_s()))
            if report.data and not ready:
                break
            for number, _ in ready:
                if number == alive:
                    return "finished"
                if number == job:
                    return "abandoned"
                by_number[number].read()
                if not by_number[number].open:
                    poll.unregister(number)
        return "deadline"
    finally:
        os.close(alive)


def _run_tests(plan: Plan, job: int, report: int, output: int, to_close: tuple[int, ...]) -> None:
    try:
        for descriptor in to_close:
            os.close(descriptor)
        try:
            result = run_tests(plan, job, report, output)
        except (OSError, MemoryError) as error:
            result = {"state": "no_jail", "passed": 0, "reason": f"{type(error).__name__}: {error}"}
        os.write(report, json.dumps(result).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


class PipeReader:
    """Keeps the first `limit` bytes from a pipe and discards the rest."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.data = b""
        self.cut = False
        self.open = True
        self._limit = limit
        os.set_blocking(descriptor, False)

    def read(self) -> None:
        """Read the available data without blocking."""
        for _ in range(16):  # bounded, so that endless output does not delay the deadline
            try:
                piece = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                self.open = False
                return
            room = self._limit - len(self.data)
            self.data += piece[:room]
            self.cut |= len(piece) > room
