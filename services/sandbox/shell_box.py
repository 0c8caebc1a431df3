"""Boxes of this host's own programs: a process that confines itself and runs commands (inside/box_main.py).

A box of *namespaces* has new user, process, mount, network, IPC, host name and cgroup namespaces, no capabilities, and
a seccomp filter. It sees the host's programs (/usr, /bin, /lib) read-only, a few files of /etc, and an empty file
system in memory, which disappears with it. Its network has only the loopback interface. If the server runs as root, the
box runs as the user nobody; inside, that user is called root.

A box of *Landlock* is a folder in the host's temporary folder, for hosts that allow no user namespaces. It can read the
same programs, write only in its folder, and connect only to its endpoint; it cannot signal, trace or read the memory of
other processes. But its paths are those of the host, so there is no /app; it has no /proc and no server of its own; its
storage is limited by file, its number of processes together with those of its user; and, unless the server runs as
root, it can change the modes and times of its user's files and see whether a file exists.

Neither protects against vulnerabilities in the kernel or the CPU (use a virtual machine). They limit the memory of each
process and the number of processes, but not the total CPU time or memory of a box. What is readable for everyone under
/usr, or in folders that the operator adds, is readable in the box: keep secrets elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

from rollyard.records.data_files import IMPORT_ROOT
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.sandbox.box import Box, BoxDied, BoxEntry, BoxLimits, BoxRefused, CommandResult, Need, plan_for
from rollyard.services.sandbox.inside.channel import framed
from rollyard.services.sandbox.inside.jail_plan import BoxPlan
from rollyard.services.sandbox.zygote_link import read_message

_MODULE = "rollyard.services.sandbox.inside.box_main"
_FLAGS = ("-S", "-s", "-P", "-B", "-u", "-W", "ignore")
_START_S = 60.0
_ANSWER_S = 30.0
"""Extra time after a command's own for the box to answer."""
_CHUNK = 8 << 20
"""Files are sent in messages of about this size; the channel's limit is 32 MiB, and base64 adds a third."""
_END_S = 10.0
"""How long a box of Landlock may take to kill its processes and remove its folder."""
_COMMON = {
    Need.IMAGE: "a box has the programs of this host, read-only",
    Need.NETWORK: "a box has no network",
    Need.USERS: "a box has one user, root",
}


class NamespaceBoxes:
    name = "namespaces"
    lacks: Mapping[Need, str] = _COMMON

    async def check(self) -> None:
        await (await self.start(plan_for(BoxLimits()))).close()

    async def start(self, plan: BoxPlan) -> Box:
        try:
            return await ShellBox.start(plan)
        except OperatorError as error:
            raise OperatorError(
                f"{error}. It needs user namespaces: allow them (sysctl user.max_user_namespaces, "
                "kernel.apparmor_restrict_unprivileged_userns), or use another host"
            ) from error


class LandlockBoxes:
    name = "landlock"
    lacks: Mapping[Need, str] = {
        **_COMMON,
        Need.PATHS: "a box of Landlock has the paths of this host, so it cannot have an /app or /tests of its own",
        Need.STORAGE_LIMIT: "a box of Landlock limits the size of each file, not of all",
    }

    async def check(self) -> None:
        await (await self.start(plan_for(BoxLimits()))).close()

    async def start(self, plan: BoxPlan) -> Box:
        return await ShellBox.start(plan, root=tempfile.mkdtemp(prefix="rollyard-box-"))


class ShellBox:
    """The server's end of one box: a Box."""

    def __init__(self, process: asyncio.subprocess.Process, end: socket.socket, plan: BoxPlan, root: str) -> None:
        self._process = process
        self._end = end
        self._output_limit = plan.output
        self._root = root
        self._cancelled: asyncio.Task[Json] | None = None
        """The exchange of a command whose caller was cancelled."""
        self.listener: socket.socket | None = None
        self.missing: tuple[str, ...] = ()
        """Parts of a machine that this host does not allow."""

    @property
    def pid(self) -> int:
        """The process that contains the box; its end is the box's."""
        return self._process.pid

    @classmethod
    async def start(cls, plan: BoxPlan, *, root: str = "") -> Self:
        """Start a box: of Landlock in the folder `root`, if given. Raises OperatorError if this host allows none."""
        own, other = socket.socketpair()
        own.setblocking(False)
        environment = {"PYTHONPATH": str(IMPORT_ROOT), "LC_ALL": "C.UTF-8"}
        with other, tempfile.TemporaryFile(prefix="rollyard-box-") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *_FLAGS,
                "-m",
                _MODULE,
                stdin=other.fileno(),
                stdout=errors,
                stderr=errors,
                env=environment,
                cwd="/",
            )
            other.close()
            box = cls(process, own, plan, root)
            try:
                async with asyncio.timeout(_START_S):
                    answer = await box._exchange({"plan": asdict(plan), "root": root})
                    if plan.endpoint and "ready" in answer:
                        box.listener = await _received_socket(own)
            except (BoxDied, TimeoutError) as error:
                await box.close()
                errors.seek(0)
                text = errors.read()[-1000:].decode(errors="replace").strip()
                raise OperatorError(f"a shell box cannot start: {text or error}") from error
            except BaseException:
                await box.close()
                raise
        if "refused" in answer:
            await box.close()
            raise OperatorError(f"a shell box cannot start on this host: {answer['refused']}")
        box.missing = tuple(answer["ready"])
        return box

    def path(self, path: str) -> str:
        return self._root + path

    async def run(
        self, argv: Sequence[str], *, cwd: str = "/", env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> CommandResult:
        order = {"argv": list(argv), "cwd": self.path(cwd), "env": dict(env or {}), "timeout_s": timeout_s}
        result = await self._order("run", timeout_s + _ANSWER_S, output_limit=self._output_limit, **order)
        return CommandResult(**result)

    async def put(self, entries: Sequence[BoxEntry]) -> None:
        pending: list[Json] = []
        size = 0
        for entry in entries:
            fields = entry.model_dump(exclude={"data"})
            fields["path"] = self.path(entry.path)
            pending.append({**fields, "data": base64.b64encode(entry.data).decode()})
            size += len(entry.data)
            if size > _CHUNK:
                await self._order("put", entries=pending)
                pending, size = [], 0
        if pending:
            await self._order("put", entries=pending)

    async def get(self, path: str, limit: int) -> list[BoxEntry] | None:
        found = await self._order("get", path=self.path(path), limit=limit)
        if found is None:
            return None
        start = len(self._root)
        return [
            BoxEntry(**{**fields, "path": fields["path"][start:], "data": base64.b64decode(fields["data"])})
            for fields in found
        ]

    async def remove(self, path: str) -> None:
        await self._order("remove", path=self.path(path))

    async def kill_processes(self) -> None:
        await self._order("kill")

    async def close(self) -> None:
        if self._cancelled is not None:
            self._cancelled.cancel()
        if self.listener is not None:
            self.listener.close()
        self._end.close()
        if self._root:  # no namespace ends its processes with it: it has to do this, and to remove its folder
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _END_S)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _order(self, action: str, wait_s: float = _ANSWER_S, **order: Any) -> Any:
        try:
            async with asyncio.timeout(wait_s):
                await self._interrupt()
                exchange = asyncio.create_task(self._exchange({"do": action, **order}))
                try:
                    answer = await asyncio.shield(exchange)
                except asyncio.CancelledError:
                    self._cancelled = exchange
                    raise
        except TimeoutError as error:
            await self.close()
            raise BoxDied("the box does not answer") from error
        if "error" in answer:
            raise BoxRefused(str(answer["error"]))
        return answer["result"]

    async def _interrupt(self) -> None:
        """End the command of a caller that was cancelled: the box does so as soon as it gets another order."""
        if (exchange := self._cancelled) is None:
            return
        self._cancelled = None
        if not exchange.done():
            await asyncio.get_running_loop().sock_sendall(self._end, framed({"do": "kill"}))
            await exchange
            await read_message(self._end)

    async def _exchange(self, message: Json) -> Json:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._end, framed(message))
            return await read_message(self._end)
        except (OSError, ValueError) as error:
            raise BoxDied(f"the box has ended: {error}") from error


async def _received_socket(end: socket.socket) -> socket.socket:
    """Return the socket that the peer sends as a file descriptor."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(end, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(end)
    _, descriptors, _, _ = socket.recv_fds(end, 1, 1)
    if not descriptors:
        raise BoxDied("the box has ended")
    found = socket.socket(fileno=descriptors[0])
    found.setblocking(False)
    return found
