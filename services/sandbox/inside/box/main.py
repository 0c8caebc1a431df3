"""Entry point of a box's process: new namespaces, then orders from the server until it disconnects."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from rollyard.services.sandbox.inside import libc, seccomp
from rollyard.services.sandbox.inside.box import commands, files, root
from rollyard.services.sandbox.inside.box.plan import BoxPlan
from rollyard.services.sandbox.inside.channel import Channel, ChannelClosed
from rollyard.services.sandbox.inside.privileges import NOBODY

_NAMESPACES = libc.NAMESPACES & ~libc.CLONE_NEWUSER


def main() -> None:
    """Read the plan from standard input, set up the box, report whether that worked, and serve orders."""
    control = socket.socket(fileno=os.dup(0))  # Python's descriptors are not inherited; 0 would be
    os.set_inheritable(control.fileno(), False)
    channel = Channel(control)
    plan = BoxPlan.from_fields(channel.receive())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        _leave_root()
        libc.enter_user_namespace(0, 0, _NAMESPACES)
    except OSError as error:
        channel.send({"refused": f"user namespaces: {error.strerror}"})
        return
    libc.die_with_parent(signal.SIGKILL)  # reset by the change of user
    child = os.fork()
    if child:
        control.close()
        os.waitpid(child, 0)
        return
    try:
        libc.die_with_parent(signal.SIGKILL)
        missing = root.build(plan)
        root.start_loopback()
        socket.sethostname(plan.hostname)
        libc.drop_capabilities()
        libc.no_new_privileges()
        libc.hide_memory()
        seccomp.install(namespaces=True, shell=True)
    except OSError as error:
        channel.send({"refused": str(error)})
        os._exit(1)
    channel.send({"ready": missing})
    _serve(channel, plan)


def _leave_root() -> None:
    """If running as root, become an unprivileged user, so that root in the box has no rights on the host's files."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        libc.show_memory()  # else /proc/self, with the namespace's maps, belongs to root


def _serve(channel: Channel, plan: BoxPlan) -> None:
    actions: dict[str, Callable[[dict[str, Any]], Any]] = {
        "run": lambda order: commands.run(order, plan),
        "write": lambda order: files.write(order["entries"]),
        "read": lambda order: files.read(order["path"], order["limit"]),
        "remove": lambda order: files.remove(order["path"]),
        "kill": lambda order: commands.kill_all(),
    }
    while True:
        try:
            order = channel.receive()
        except ChannelClosed:
            os._exit(0)
        try:
            answer = {"result": actions[order["do"]](order)}
        except (OSError, RecursionError, MemoryError) as error:  # of files that the commands created
            answer = {"error": f"{type(error).__name__}: {error}"}
        channel.send(answer)


if __name__ == "__main__":
    sys.exit(main())
