"""The process that jails are forked from: a Python with the standard library's common part loaded, and nothing else.

It reads no job: each comes on a socket of its own, which goes straight to the jail.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import signal
import socket
import traceback
from collections.abc import Callable
from dataclasses import replace
from os import environ

from rollyard.services.sandbox.inside import landlock, libc, privileges, seccomp
from rollyard.services.sandbox.inside.channel import Channel
from rollyard.services.sandbox.inside.jail_plan import Plan
from rollyard.services.sandbox.inside.monitor import start_watching, watch

_BEYOND_AN_ANSWERS = 16
"""Descriptors from here on are not those that an answer's process sets up for itself."""
_LOADED = (
    "abc array bisect cmath collections copy dataclasses datetime decimal enum fractions functools hashlib heapq "
    "itertools json math operator os random re statistics string sys textwrap time traceback typing unicodedata"
)


def main() -> None:
    """Serve until the server hangs up. The first message out says what the kernel offers, the first in is the plan."""
    control = socket.socket(fileno=0)
    libc.die_with_parent(signal.SIGKILL)
    offered = {"seccomp": _works(lambda: seccomp.install(namespaces=True)), "landlock": landlock.version()}
    Channel(control).send(offered)
    plan = Plan.of(Channel(control).receive())
    if plan.landlock:
        rules = landlock.rules(plan.readable)  # while the files can be reached
        plan = replace(plan, rules=fcntl.fcntl(rules, fcntl.F_DUPFD_CLOEXEC, _BEYOND_AN_ANSWERS))
        os.close(rules)
    privileges.give_up_root()
    libc.die_with_parent(signal.SIGKILL)  # a change of user has undone it
    for name in _LOADED.split():
        importlib.import_module(name)
    environ.clear()
    nothing = os.open("/dev/null", os.O_RDONLY)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the wardens
    gc.collect()
    gc.freeze()  # a collection in a child would copy the parent's pages
    while True:
        message, received, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        for job in received:
            if os.fork() == 0:
                try:
                    start_watching()
                    os.dup2(nothing, control.fileno())
                    watch(plan.lasting(message[0]), job)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)
            os.close(job)


def _works(attempt: Callable[[], None]) -> bool:
    """Whether `attempt` succeeds, tried in a child because it cannot be undone."""
    child = os.fork()
    if child == 0:
        try:
            libc.no_new_privileges()
            attempt()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    main()
