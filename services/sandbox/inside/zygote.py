"""Zygote: the process from which jails are forked. It preloads common modules of the standard library.

It does not read jobs: each job arrives on its own socket, which is passed directly to the jail.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from os import environ

from rollyard.services.sandbox.inside import landlock, libc, private_tree, privileges, seccomp
from rollyard.services.sandbox.inside.channel import Channel
from rollyard.services.sandbox.inside.jail_plan import Plan
from rollyard.services.sandbox.inside.monitor import watch

_MIN_RULES_DESCRIPTOR = 16
"""Lowest descriptor for the Landlock rules, above those that an answer's process uses."""
_PRELOADED = (
    "abc array bisect cmath collections copy dataclasses datetime decimal enum fractions functools hashlib heapq "
    "itertools json math operator os random re statistics string sys textwrap time traceback typing unicodedata"
)


def main() -> None:
    """Fork jails until the server disconnects. Before that, send the kernel's features and receive the plan."""
    control = socket.socket(fileno=0)
    libc.die_with_parent(signal.SIGKILL)
    stdlib = os.path.dirname(os.__file__)  # noqa: PTH120 (pathlib is not loaded)
    features = {
        "seccomp": _is_supported(lambda: seccomp.install(namespaces=True)),
        "landlock": landlock.version(),
        "private_tree": _is_supported(lambda: private_tree.enter([(stdlib, stdlib)])),
    }
    Channel(control).send(features)
    plan = Plan(**Channel(control).receive())
    if plan.tree:
        private_tree.enter(plan.tree)
    if plan.landlock:
        rules = landlock.rules(plan.readable)  # while the files are still accessible
        plan = replace(plan, rules=fcntl.fcntl(rules, fcntl.F_DUPFD_CLOEXEC, _MIN_RULES_DESCRIPTOR))
        os.close(rules)
    # The project's folder may be site-packages, but answers must only see the standard library.
    sys.path.remove(environ["PYTHONPATH"])
    privileges.drop_root()
    libc.die_with_parent(signal.SIGKILL)  # reset by the change of user
    for name in _PRELOADED.split():
        importlib.import_module(name)
    environ.clear()
    devnull = os.open("/dev/null", os.O_RDONLY)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # monitors are not waited for
    gc.collect()
    gc.freeze()  # a collection in a child would copy the parent's pages
    while True:
        message, received, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        for job in received:
            if os.fork() == 0:
                try:
                    libc.die_with_parent(signal.SIGKILL)
                    os.dup2(devnull, control.fileno())
                    watch(plan.with_time_scaled_by(message[0]), job)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)
            os.close(job)


def _is_supported(attempt: Callable[[], None]) -> bool:
    """Return whether `attempt` succeeds. It runs in a child process, because its effects cannot be undone."""
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
