"""Box: a place with files of its own, in which untrusted commands run one after another.

    backend = await backend_named("auto")                 # backends.py; OperatorError if this host has none
    box = await backend.start(plan_for(BoxLimits(), folders=["/app"]))
    await box.put([BoxEntry(path="/app/a.txt", kind="file", data=b"1")])
    result = await box.run(("sh", "-c", "wc -c a.txt"), cwd="/app", timeout_s=60)
    await box.close()

A backend is one file: a class with `name`, `lacks`, `check` and `start`, and a class for its boxes.

    namespaces (shell_box.py)      new namespaces, as bubblewrap makes them; needs no other program
    landlock (shell_box.py)        a folder of this host; for hosts without user namespaces
    docker, podman (container_box.py)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Literal, Protocol

from pydantic import Field

from rollyard.records.errors import RollyardError
from rollyard.records.types import Record
from rollyard.services.sandbox.inside.jail_plan import BoxPlan

MIB = 1 << 20
_MAX_CONNECTIONS = 64
"""Maximum number of a box's connections with its endpoint; each takes two of the server's open files."""


class Need(StrEnum):
    """What a task may need of its box, and what not every backend has."""

    PATHS = "paths"
    """Files at any path, such as /app and /tests."""
    IMAGE = "image"
    """The files of a container image, and programs that a command installs."""
    NETWORK = "network"
    USERS = "users"
    """Users other than root."""
    STORAGE_LIMIT = "storage_limit"
    """A limit on the size of all files; without it, the limit applies to each file."""


class BoxBackend(Protocol):
    name: str
    lacks: Mapping[Need, str]
    """What boxes of this kind do not have, as a clause such as `a box has no network`."""

    async def check(self) -> None:
        """Raise OperatorError, with what to do, if this host cannot start such boxes."""

    async def start(self, plan: BoxPlan) -> Box:
        """Start a box. Raises OperatorError if this host does not allow it."""
        ...


class Box(Protocol):
    """One running box. Calls must not overlap. If a call of `run` is cancelled, the box's processes are killed."""

    listener: socket.socket | None
    """With `plan.endpoint`: connections of the box's processes to this address of 127.0.0.1 arrive here (`relayed`).
    None if the host does not allow it for a container."""

    def path(self, path: str) -> str:
        """Return under which path the box's own processes find its file `path`."""
        ...

    async def run(
        self, argv: Sequence[str], *, cwd: str = "/", env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> CommandResult:
        """Run a command until it exits or its time is over. Processes in the background continue.

        Raises BoxDied if the box has ended.
        """
        ...

    async def put(self, entries: Sequence[BoxEntry]) -> None:
        """Create files, folders and links, with their parents. Raises BoxRefused if they cannot be created."""

    async def get(self, path: str, limit: int) -> list[BoxEntry] | None:
        """Return a file, or a folder with its content; None if there is none. Other kinds of files are left out.

        Raises BoxRefused if it contains more than `limit` bytes.
        """
        ...

    async def remove(self, path: str) -> None:
        """Remove a file or folder, if it exists. Raises BoxRefused if it cannot be removed."""

    async def kill_processes(self) -> None:
        """Kill every process of the box. Its files stay."""

    async def close(self) -> None:
        """End the box and all its processes."""


class BoxLimits(Record):
    storage_mb: int = Field(default=512, ge=1)
    """Size of all files that the box writes; they are kept in memory."""
    memory_mb: int = Field(default=4096, ge=64)
    """Address space of each process; in a container, the memory of all."""
    processes: int = Field(default=256, ge=4)
    """Maximum number of simultaneous processes and threads."""
    open_files: int = Field(default=1024, ge=16)
    """Maximum number of open files of each process."""
    output_kb: int = Field(default=64, ge=1)
    """Maximum size of a command's output; of a longer one, the start and the end are kept."""


class CommandResult(Record):
    exit_code: int
    """Negative: the number of the signal that ended it (in a container, 128 more than it). -1 if its time was over."""
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


def plan_for(
    limits: BoxLimits,
    *,
    visible: Sequence[str] = (),
    folders: Sequence[str] = (),
    image: str = "",
    network: bool = False,
    endpoint: bool = False,
) -> BoxPlan:
    """Return a plan with these limits. `visible`: folders of the host to show; `folders`: writable ones to create."""
    return BoxPlan(
        visible=tuple(visible),
        folders=tuple(folders),
        storage=limits.storage_mb * MIB,
        memory=limits.memory_mb * MIB,
        processes=limits.processes,
        open_files=limits.open_files,
        output=limits.output_kb * 1024,
        image=image,
        network=network,
        endpoint=endpoint,
    )


def is_visible(path: str, visible: Sequence[str]) -> bool:
    """Return whether the host's file `path` can be read in a box that shows the folders `visible`."""
    real = os.path.realpath(path)
    return any(f"{real}/".startswith(f"{os.path.realpath(folder).rstrip('/')}/") for folder in visible)


async def content(box: Box, path: str, limit: int) -> bytes | None:
    """Return the content of a regular file; None if there is none. Raises BoxRefused if it is larger than `limit`."""
    entries = await box.get(path, limit)
    return entries[0].data if entries and entries[0].kind == "file" else None


@asynccontextmanager
async def relayed(box: Box, host: str, port: int) -> AsyncIterator[str]:
    """Connect what the box's processes send to its listener with a server of this host. Yields the URL in the box.

    Raises BoxRefused if the box has no listener.
    """
    if box.listener is None:
        raise BoxRefused(
            "the box has no endpoint: for a container, the server must run as root, on the host of the engine"
        )
    pairs: set[asyncio.Task[None]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(pairs) >= _MAX_CONNECTIONS:
            writer.close()
            return
        pairs.add(task)
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.CancelledError):
            others, other = await asyncio.open_connection(host, port)
            with contextlib.closing(other):
                await asyncio.gather(_copied(reader, other), _copied(others, writer))
        pairs.discard(task)

    own = box.listener.dup()  # closed with the server
    server = await asyncio.start_server(connect, sock=own)
    try:
        yield f"http://127.0.0.1:{own.getsockname()[1]}"
    finally:
        server.close()
        for task in list(pairs):
            task.cancel()
        await asyncio.gather(*pairs, return_exceptions=True)


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(1 << 16):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
