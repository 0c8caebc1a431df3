"""Entry point of a box's process: new namespaces, then orders from the server until it disconnects.

This process becomes the box's process 1, which runs commands and writes, reads and removes files.
"""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import select
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable
from typing import Any

from rollyard.services.sandbox.inside import libc, seccomp
from rollyard.services.sandbox.inside import private_tree as root
from rollyard.services.sandbox.inside.channel import Channel, ChannelClosed
from rollyard.services.sandbox.inside.jail_plan import BoxPlan
from rollyard.services.sandbox.inside.privileges import NOBODY

_DRAIN_S = 0.2
"""How long output is read after the command has exited, in case that a background process still writes."""
_NOT_FOUND = 127
_NAMESPACES = libc.NAMESPACES & ~libc.CLONE_NEWUSER


def main() -> None:
    """Read the plan from standard input, set up the box, report whether that worked, and serve orders."""
    control = socket.socket(fileno=os.dup(0))  # Python's descriptors are not inherited; 0 would be
    os.set_inheritable(control.fileno(), False)
    channel = Channel(control)
    plan = BoxPlan(**channel.receive())
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
        "run": lambda order: run(order, plan),
        "write": lambda order: write(order["entries"]),
        "read": lambda order: read(order["path"], order["limit"]),
        "remove": lambda order: remove(order["path"]),
        "kill": lambda order: kill_all(),
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


def write(entries: list[dict[str, Any]]) -> None:
    """Create the folders, files and links, each with its parents. An existing file is replaced. Raises OSError."""
    for entry in entries:
        path = entry["path"]
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)  # noqa: PTH103, PTH120
        if entry["kind"] == "folder":
            os.makedirs(path, exist_ok=True)  # noqa: PTH103
        elif entry["kind"] == "link":
            _unlink(path)
            os.symlink(entry["target"], path)  # noqa: PTH211
        else:
            _unlink(path)
            opened = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
            with os.fdopen(opened, "wb") as file:
                file.write(base64.b64decode(entry["data"]))
        if entry["kind"] != "link" and entry["mode"] is not None:
            os.chmod(path, entry["mode"])  # noqa: PTH101


def read(path: str, limit: int) -> dict[str, Any]:
    """Return the first `limit` bytes of a regular file, or why there is none."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return {"missing": f"{path}: {error.strerror}"}
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        return {"missing": f"{path} is not a regular file"}
    with os.fdopen(opened, "rb") as file:
        return {"data": base64.b64encode(file.read(limit)).decode()}


def remove(path: str) -> None:
    """Remove a file, a link or a folder with its content, if it exists. Raises OSError."""
    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
        shutil.rmtree(path)
    else:
        _unlink(path)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108


if __name__ == "__main__":
    main()
