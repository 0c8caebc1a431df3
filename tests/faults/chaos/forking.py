"""Forks commands from a process that has already imported the stack: real processes that save a second of imports.

It reads one line of JSON per command, prints `started <number> <pid>`, and later `ended <number> <status>`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import sys
from typing import Any


def main() -> None:
    """Fork commands until stdin ends. Arguments: the modules to import."""
    modules = {name: importlib.import_module(name) for name in sys.argv[1:]}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    numbers: dict[int, int] = {}
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(reading, selectors.EVENT_READ)
    buffer = b""
    while True:
        for key, _ in selector.select():
            data = os.read(key.fd, 65536)
            if key.fd == reading:
                _reap(numbers)
                continue
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if not (pid := os.fork()):
                    selector.close()
                    _become(order, modules[order["module"]])
                numbers[pid] = order["number"]
                print("started", order["number"], pid, flush=True)


def _reap(numbers: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            print("ended", numbers.pop(ended[0]), os.waitstatus_to_exitcode(ended[1]), flush=True)


def _become(order: dict[str, Any], module: Any) -> None:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.chdir(order["here"])
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, 256)
        sys.argv = [order["name"], *order["arguments"]]
        sys.path[0] = ""
        module.main()
        status = 0
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
