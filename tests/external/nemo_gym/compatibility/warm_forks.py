"""The program that forks: `warm_forks.py SOCKET`. It ends with its standard input. See warm_python.py.

It runs in NeMo Gym's environment, so it imports nothing of Rollyard. It has no threads, because a process with threads
must not fork. It starts no Ray cluster: an environment that uses Ray starts one at its first remote call.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

POLL_S = 0.1


def main() -> None:
    import nemo_gym.base_resources_server
    import nemo_gym.base_responses_api_agent  # noqa: F401
    from nemo_gym import server_utils

    server_utils.initialize_ray = lambda: None
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    calls: dict[int, socket.socket] = {}
    sources: list[Any]
    while True:
        _report_ended(calls)
        sources = [0, listener, *calls.values()]
        ready, _, _ = select.select(sources, [], [], POLL_S)
        for source in ready:
            if source == 0 and not os.read(0, 1):
                for pid in calls:
                    _signal(pid, signal.SIGKILL)
                return
            if source is listener:
                call, _ = listener.accept()
                job, streams = _receive(call)
                pid = os.fork()
                if pid == 0:
                    _run(job, streams)
                for stream in streams:
                    os.close(stream)
                calls[pid] = call
        for pid, call in calls.items():
            if call in ready:
                _signal(pid, signal.SIGTERM if _read(call) else signal.SIGKILL)


def _report_ended(calls: dict[int, socket.socket]) -> None:
    for pid in list(calls):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            _signal(pid, signal.SIGKILL)  # what it started
            with calls.pop(pid) as call, contextlib.suppress(OSError):
                call.send(bytes([os.waitstatus_to_exitcode(status) % 256]))


def _receive(call: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size, streams, _, _ = socket.recv_fds(call, 8, 3)
    wanted, received = int.from_bytes(size), b""
    while len(received) < wanted:
        received += call.recv(wanted - len(received))
    job: dict[str, Any] = json.loads(received)
    return job, streams


def _read(call: socket.socket) -> bytes:
    try:
        return call.recv(1)
    except OSError:
        return b""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _run(job: dict[str, Any], streams: list[int]) -> None:
    status = 1
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.environ.clear()
        os.environ.update(job["environment"])
        os.chdir(job["folder"])
        sys.argv = job["arguments"]
        added = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
        sys.path[:0] = [str(Path(sys.argv[0]).absolute().parent), *added]
        sys.modules["numpy"].random.seed()  # otherwise every fork would draw the same numbers
        runpy.run_path(str(Path(sys.argv[0]).absolute()), run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
