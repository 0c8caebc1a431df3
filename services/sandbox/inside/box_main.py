"""Entry point of a box's process: it confines itself, then takes orders from the server until it disconnects.

This process runs the box's commands and writes, reads and removes files. In namespaces it becomes the box's process 1.
"""

from __future__ import annotations

import base64
import contextlib
import json
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

from rollyard.services.sandbox.inside import jail, landlock, libc, private_tree, seccomp
from rollyard.services.sandbox.inside.channel import Channel, ChannelClosed
from rollyard.services.sandbox.inside.jail_plan import BoxPlan
from rollyard.services.sandbox.inside.privileges import NOBODY

_DRAIN_S = 0.2
"""How long output is read after the command has exited, in case that a background process still writes."""
_NOT_FOUND = 127
_NAMESPACES = libc.NAMESPACES & ~libc.CLONE_NEWUSER
MAX_READ = 16 << 20
"""Maximum size of the files that one order returns; the channel's limit is 32 MiB, and base64 adds a third."""
_MAX_NAMES = 8 << 20
"""Maximum size of their names and modes."""


def main() -> None:
    """Read the plan from standard input, set up the box, report whether that worked, and serve orders."""
    control = socket.socket(fileno=os.dup(0))  # Python's descriptors are not inherited; 0 would be
    os.set_inheritable(control.fileno(), False)
    channel = Channel(control)
    order = channel.receive()
    plan, root = BoxPlan(**order["plan"]), str(order["root"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        if root:
            _keep_folder(plan, root, control)
        else:
            _enter_namespaces(control)
    except OSError as error:
        channel.send({"refused": str(error)})
        if root:
            shutil.rmtree(root, ignore_errors=True)
        return
    try:
        libc.die_with_parent(signal.SIGKILL)
        missing = [] if root else private_tree.build(plan)
        if not root:
            private_tree.start_loopback()
            socket.sethostname(plan.hostname)
        limits = _limits(plan, jail.thread_limit(plan.processes) if root else plan.processes)
        listener = socket.create_server(("127.0.0.1", 0)) if plan.endpoint else None
        if root:
            _restrict_to_folder(plan, root, [listener.getsockname()[1]] if listener else [])
        libc.drop_capabilities()
        libc.no_new_privileges()
        libc.hide_memory()
        seccomp.install(namespaces=not root, shell="landlock" if root else "namespaces")
    except OSError as error:
        channel.send({"refused": str(error)})
        os._exit(1)
    channel.send({"ready": missing})
    if listener is not None:
        socket.send_fds(control, [b"s"], [listener.fileno()])
        listener.close()
    _serve(channel, control, limits)


def _enter_namespaces(control: socket.socket) -> None:
    """Return in a new process, which is the box's process 1; this one waits for its end and exits."""
    _leave_root()
    try:
        libc.enter_user_namespace(0, 0, _NAMESPACES)
    except OSError as error:
        raise OSError(error.errno, f"user namespaces: {error.strerror}") from error
    libc.die_with_parent(signal.SIGKILL)  # reset by the change of user
    if child := os.fork():
        control.close()
        os.waitpid(child, 0)
        os._exit(0)


def _keep_folder(plan: BoxPlan, root: str, control: socket.socket) -> None:
    """Create the folders of a box of Landlock, and return in a new process; this one waits for its end, ends what is
    left of the box, removes its folder, and exits.
    """
    if landlock.version() < landlock.SCOPES_SIGNALS:
        found = landlock.version() or "none"
        raise OSError(0, f"Landlock: found version {found}; expected {landlock.SCOPES_SIGNALS} (Linux 6.12) or later")
    for path in ("/tmp", "/root", *plan.folders):
        os.makedirs(root + path, exist_ok=True)  # noqa: PTH103
    if os.getuid() == 0:
        for folder, _, _ in os.walk(root):
            os.chown(folder, NOBODY, NOBODY)
    _leave_root()
    libc.adopt_orphans()
    if child := os.fork():
        control.close()
        os.waitpid(child, 0)
        _kill_children()
        shutil.rmtree(root, ignore_errors=True)
        os._exit(0)


def _kill_children() -> None:
    """Kill all descendants: those whose parent has been killed become children of this process."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123
            children = file.read().split()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _restrict_to_folder(plan: BoxPlan, root: str, ports: list[int]) -> None:
    readable = [path for path in private_tree.shown(plan) if os.path.exists(path)]  # noqa: PTH110
    rules = landlock.rules(readable, [root], ports)
    libc.no_new_privileges()
    landlock.restrict(rules)
    os.close(rules)


def _leave_root() -> None:
    """If running as root, become an unprivileged user, so that root in the box has no rights on the host's files."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        libc.show_memory()  # else /proc/self, with the namespace's maps, belongs to root


def _serve(channel: Channel, control: socket.socket, limits: dict[int, int]) -> None:
    def is_interrupted() -> bool:
        return bool(select.select([control], [], [], 0)[0])

    actions: dict[str, Callable[[dict[str, Any]], Any]] = {
        "run": lambda order: run(order, limits, is_interrupted),
        "put": lambda order: put(order["entries"]),
        "get": lambda order: get(order["path"], order["limit"]),
        "remove": lambda order: remove(order["path"]),
        "kill": lambda order: kill_all(),
    }
    while True:
        try:
            order = channel.receive()
        except ChannelClosed:
            kill_all()
            os._exit(0)
        try:
            answer = {"result": actions[order["do"]](order)}
        except (OSError, RecursionError, MemoryError) as error:  # of files that the commands created
            answer = {"error": f"{type(error).__name__}: {error}"}
        try:
            channel.send(answer)
        except ChannelClosed:
            continue


def run(order: dict[str, Any], limits: dict[int, int], is_interrupted: Callable[[], bool]) -> dict[str, Any]:
    """Run the command of an order until it exits, its time is over, or another order arrives. Processes in the
    background continue.
    """
    deadline = time.monotonic() + order["timeout_s"]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _execute(order, limits, writer)
    os.close(writer)
    os.set_blocking(reader, False)
    output = Output(order["output_limit"])
    status: int | None = None
    timed_out = interrupted = False
    while status is None and not timed_out and not interrupted:
        _read_ready(reader, output, min(0.05, max(deadline - time.monotonic(), 0)))
        status = _reap(child)
        timed_out, interrupted = time.monotonic() >= deadline, is_interrupted()
    timed_out = status is None and not interrupted
    if status is None:
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
    """Kill all other processes that this one may signal: its namespace's, or those of its Landlock domain."""
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


def _read_ready(reader: int, output: Output, wait_s: float) -> bool:
    """Read once if there is output within `wait_s`. Return whether there may be more."""
    if not select.select([reader], [], [], wait_s)[0]:
        return False
    with contextlib.suppress(BlockingIOError):
        if piece := os.read(reader, 1 << 16):
            output.add(piece)
            return True
        time.sleep(min(wait_s, 0.005))  # closed by the command, which still runs
    return False


def _execute(order: dict[str, Any], limits: dict[int, int], writer: int) -> None:
    try:
        os.setsid()
        devnull = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((devnull, 0), (writer, 1), (writer, 2)):
            os.dup2(source, target)
        for limit, value in limits.items():
            resource.setrlimit(limit, (value, value))
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
            file.write("1000")  # if the host runs out of memory, the kernel ends the command and not the box
        os.chdir(order["cwd"])
        argv, environment = order["argv"], order["env"]
        os.execvpe(argv[0], argv, environment)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(_NOT_FOUND)


def _limits(plan: BoxPlan, processes: int) -> dict[int, int]:
    return {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: plan.memory,
        resource.RLIMIT_FSIZE: plan.storage,
        resource.RLIMIT_NOFILE: plan.open_files,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_MEMLOCK: 0,
    }


class Output:
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


def put(entries: list[dict[str, Any]]) -> None:
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


def get(path: str, limit: int) -> list[dict[str, Any]] | None:
    """Return the file, or the folder and its content, at `path`, following a link there and no others.

    Raises OSError if it contains more than `limit` bytes, and for what cannot be read.
    """
    entries: list[dict[str, Any]] = []
    if not os.path.exists(path):  # noqa: PTH110
        return None
    waiting = [(os.path.realpath(path), path)]
    left, left_names = min(limit, MAX_READ), _MAX_NAMES
    while waiting:
        source, name = waiting.pop()
        found = os.lstat(source)
        entry = {"path": name, "kind": "file", "data": "", "mode": stat.S_IMODE(found.st_mode) & 0o777, "target": ""}
        if stat.S_ISLNK(found.st_mode):
            entry |= {"kind": "link", "mode": None, "target": os.readlink(source)}  # noqa: PTH115
        left_names -= len(json.dumps(entry))
        if left_names < 0:
            raise OSError(f"{path} contains too many files")
        if stat.S_ISDIR(found.st_mode):
            entries.append({**entry, "kind": "folder"})
            children = sorted(os.listdir(source), reverse=True)  # noqa: PTH208
            waiting += [(f"{source}/{child}", f"{name}/{child}") for child in children]
        elif stat.S_ISLNK(found.st_mode):
            entries.append(entry)
        elif stat.S_ISREG(found.st_mode):
            opened = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with os.fdopen(opened, "rb") as file:
                data = file.read(left + 1)
            left -= len(data)
            if left < 0:
                raise OSError(f"{path} contains more than {min(limit, MAX_READ)} bytes")
            entries.append({**entry, "data": base64.b64encode(data).decode()})
    return entries


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
