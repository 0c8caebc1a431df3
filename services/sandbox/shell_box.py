"""Shell box: a small Linux machine in which untrusted commands run one after another and keep their files.

    box = await ShellBox.start(BoxPlan(...))
    result = await box.run(("bash", "-c", "make test"), cwd="/app", timeout_s=60)
    await box.close()

Each box is a process of its own in new user, process, mount, network, IPC, host name and cgroup namespaces, without
capabilities and behind a seccomp filter. It sees the host's programs (/usr, /bin, /lib) read-only, a few files of /etc,
and an empty file system in memory, which disappears with it. Its network has only the loopback interface. If the server
runs as root, the box runs as the user nobody; inside, that user is called root.

It does not protect against vulnerabilities in the kernel or the CPU (use a virtual machine). It limits the memory of
each process, the number of processes and the size of all files, but not the total CPU time or memory of a box. What is
readable for everyone under /usr, or in folders that the operator adds, is readable in the box: keep secrets elsewhere.

It needs user namespaces. Landlock, which `Sandbox` uses without them, cannot give a box its own /app.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, Self

from pydantic import Field

from rollyard.records.data_files import IMPORT_ROOT
from rollyard.records.errors import OperatorError, RollyardError
from rollyard.records.types import Json, Record
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
MIB = 1 << 20


class BoxLimits(Record):
    storage_mb: int = Field(default=512, ge=1)
    """Size of all files that the box writes; they are kept in memory."""
    memory_mb: int = Field(default=4096, ge=64)
    """Address space of each process."""
    processes: int = Field(default=256, ge=4)
    """Maximum number of simultaneous processes and threads."""
    open_files: int = Field(default=1024, ge=16)
    """Maximum number of open files of each process."""
    output_kb: int = Field(default=64, ge=1)
    """Maximum size of a command's output; of a longer one, the start and the end are kept."""


class CommandResult(Record):
    exit_code: int
    """Negative: the number of the signal that ended it. -1 if its time was over."""
    output: str
    """Standard output and error, in the order in which they were written."""
    timed_out: bool = False
    output_dropped: int = 0
    """Number of bytes in the middle of the output that were dropped."""


class BoxEntry(Record):
    path: str
    kind: Literal["file", "folder", "link"]
    data: bytes = b""
    mode: int | None = None
    """Permissions; None: the default."""
    target: str = ""
    """Where a link leads."""


class BoxDied(RollyardError):
    """The box has ended, or does not answer: out of memory, or killed."""


class BoxRefused(RollyardError):
    """The box could not do what the server asked, because of files that its commands created."""


def plan_for(limits: BoxLimits, *, visible: Sequence[str] = (), folders: Sequence[str] = ()) -> BoxPlan:
    """Return a plan with these limits. `visible`: folders of the host to show; `folders`: writable ones to create."""
    return BoxPlan(
        visible=tuple(visible),
        folders=tuple(folders),
        storage=limits.storage_mb * MIB,
        memory=limits.memory_mb * MIB,
        processes=limits.processes,
        open_files=limits.open_files,
    )


class ShellBox:
    """One running box. Calls must not overlap."""

    def __init__(self, process: asyncio.subprocess.Process, end: socket.socket, output_limit: int) -> None:
        self._process = process
        self._end = end
        self._output_limit = output_limit
        self.missing: tuple[str, ...] = ()
        """Parts of a machine that this host does not allow."""

    @property
    def pid(self) -> int:
        """The process that contains the box; its end is the box's."""
        return self._process.pid

    @classmethod
    async def start(cls, plan: BoxPlan, *, output_limit: int = 64 * 1024) -> Self:
        """Start a box. Raises OperatorError if this host does not allow one."""
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
            box = cls(process, own, output_limit)
            try:
                async with asyncio.timeout(_START_S):
                    answer = await box._exchange(asdict(plan))
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
            raise OperatorError(
                f"a shell box cannot start on this host: {answer['refused']}. It needs user namespaces: allow them "
                "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns), or use another host"
            )
        box.missing = tuple(answer["ready"])
        return box

    async def run(
        self, argv: Sequence[str], *, cwd: str = "/", env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> CommandResult:
        """Run a command until it exits or its time is over. Processes in the background continue.

        Raises BoxDied if the box has ended.
        """
        order = {"argv": list(argv), "cwd": cwd, "env": dict(env or {}), "timeout_s": timeout_s}
        result = await self._order("run", timeout_s + _ANSWER_S, output_limit=self._output_limit, **order)
        return CommandResult(**result)

    async def write(self, entries: Sequence[BoxEntry]) -> None:
        """Create files, folders and links. Raises BoxRefused if they cannot be created."""
        pending: list[Json] = []
        size = 0
        for entry in entries:
            fields = entry.model_dump(exclude={"data"})
            pending.append({**fields, "data": base64.b64encode(entry.data).decode()})
            size += len(entry.data)
            if size > _CHUNK:
                await self._order("write", entries=pending)
                pending, size = [], 0
        if pending:
            await self._order("write", entries=pending)

    async def read(self, path: str, limit: int) -> bytes | None:
        """Return the first `limit` bytes of a regular file; None if there is none."""
        found = await self._order("read", path=path, limit=limit)
        return None if "missing" in found else base64.b64decode(found["data"])

    async def remove(self, path: str) -> None:
        """Remove a file or folder, if it exists. Raises BoxRefused if it cannot be removed."""
        await self._order("remove", path=path)

    async def kill_processes(self) -> None:
        """Kill every process of the box. Its files stay."""
        await self._order("kill")

    async def close(self) -> None:
        """End the box and all its processes."""
        self._end.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _order(self, action: str, wait_s: float = _ANSWER_S, **order: Any) -> Any:
        try:
            async with asyncio.timeout(wait_s):
                answer = await self._exchange({"do": action, **order})
        except TimeoutError as error:
            await self.close()
            raise BoxDied("the box does not answer") from error
        if "error" in answer:
            raise BoxRefused(str(answer["error"]))
        return answer["result"]

    async def _exchange(self, message: Json) -> Json:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._end, framed(message))
            return await read_message(self._end)
        except (OSError, ValueError) as error:
            raise BoxDied(f"the box has ended: {error}") from error


def is_visible(path: str, visible: Sequence[str]) -> bool:
    """Return whether the host's file `path` can be read in a box that shows the folders `visible`."""
    real = os.path.realpath(path)
    return any(f"{real}/".startswith(f"{os.path.realpath(folder).rstrip('/')}/") for folder in visible)
