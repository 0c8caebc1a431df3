"""One job: makes a jail, watches over it from outside, ends all of it, and tells the server what happened.

Whatever the answer does, it cannot see this process: it has another process namespace, and descriptors of its own.
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
from rollyard.services.sandbox.inside.pipe_reader import PipeReader
from rollyard.services.sandbox.inside.test_runner import run_tests

_REPORT_BYTES = 64 * 1024
_MOMENT_S = 1.0


def watch(plan: Plan, job: int) -> None:
    """Do the job on socket `job`: its order is read by the tests' process, the answer is written here."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    begun = time.monotonic()
    try:
        if plan.namespaces:
            jail.separate()
        ended, report, output, cut, cpu_s = _kept(plan, job)
    except OSError as error:
        ended, report, output, cut, cpu_s = "no_jail", {"reason": str(error)}, b"", False, 0.0
    told = {
        "ended": ended,
        "report": report,
        "output": output.decode(errors="replace"),
        "output_cut": cut,
        "cpu_s": round(cpu_s, 4),
        "wall_s": round(time.monotonic() - begun, 4),
    }
    with socket.socket(fileno=job) as server, contextlib.suppress(OSError):  # it may have lost interest
        server.sendall(json.dumps(told).encode())
        server.shutdown(socket.SHUT_WR)
        # What is left of an order that no jail has read would reset the connection, and the answer with it.
        while server.recv(1 << 16):
            pass


def _kept(plan: Plan, job: int) -> tuple[str, dict[str, Any], bytes, bool, float]:
    heard, said = os.pipe()
    shown, printed = os.pipe()
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)  # the jail hides it from this process too
    child = os.fork()
    if child == 0:
        _run_tests(plan, job, said, printed, (heard, shown, proc))
    os.close(said)
    os.close(printed)
    report, output = PipeReader(heard, _REPORT_BYTES), PipeReader(shown, plan.output)
    try:
        ended = _waited(DeadlineClock(plan.wall_s, proc, child), job, report, output)
    finally:
        # Process 1 takes its whole namespace with it; elsewhere the group is all there can be, as nobody may fork.
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
        _, _, used = os.wait4(child, 0)
    for kept in (report, output):
        kept.read()
    try:
        read = json.loads(report.data)
    except ValueError:
        read = {}
    return ended, read, output.data, output.cut, used.ru_utime + used.ru_stime


def _waited(clock: DeadlineClock, job: int, report: PipeReader, output: PipeReader) -> str:
    """Until the tests' process ends, the deadline passes or the server hangs up; which of them.

    What it reports is the last that it does: from there on the deadline does not count.
    """
    alive = libc.pidfd_open(clock.child)
    poll = select.poll()
    poll.register(alive, select.POLLIN)
    poll.register(job, select.POLLRDHUP)
    by_number = {kept.descriptor: kept for kept in (report, output)}
    for number in by_number:
        poll.register(number, select.POLLIN)
    try:
        while (left := _MOMENT_S if report.data else clock.left()) > 0:
            for number, _ in poll.poll(max(left, 0.05) * 1000):
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


def _run_tests(plan: Plan, job: int, report: int, output: int, others: tuple[int, ...]) -> None:
    """The child: never returns."""
    try:
        for descriptor in others:
            os.close(descriptor)
        try:
            told = run_tests(plan, job, report, output)
        except (OSError, MemoryError) as error:
            told = {"state": "no_jail", "passed": 0, "reason": f"{type(error).__name__}: {error}"}
        os.write(report, json.dumps(told).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def start_watching() -> None:
    """Before `watch`, in a process of its own: it ends with the process that made it."""
    libc.die_with_parent(signal.SIGKILL)
