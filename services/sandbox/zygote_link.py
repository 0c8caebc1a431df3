"""Starts a zygote, requests jails from it, and stops it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from rollyard.records.types import Json
from rollyard.services.sandbox.inside.channel import MAX_MESSAGE_BYTES, framed
from rollyard.services.sandbox.inside.jail_plan import Plan

_START_S = 20.0


class ZygoteDied(Exception):
    """Raised when the zygote is not running. The message usually includes its last line of output."""


@dataclass(frozen=True)
class Command:
    """A command to start, with its environment."""

    arguments: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class KernelFeatures:
    """Kernel features that the zygote can use."""

    seccomp: bool
    landlock: int
    """Landlock version; 0 if not supported."""
    private_tree: bool = False
    """Whether the host's files can be hidden by a mount namespace."""


class ZygoteClient:
    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, errors: IO[bytes]) -> None:
        self._process = process
        self._control = control
        self._errors = errors
        self.features = KernelFeatures(False, 0)

    @classmethod
    async def start(cls, command: Command, errors: IO[bytes]) -> ZygoteClient:
        """Start `command` with its standard error redirected to `errors`. Raises ZygoteDied if that fails."""
        own_end, child_end = socket.socketpair()
        try:
            # Not in a worker thread: bubblewrap dies with the thread that started it.
            process = subprocess.Popen(  # noqa: ASYNC220 (it takes milliseconds)
                command.arguments,
                stdin=child_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                env=command.environment,
                start_new_session=True,
            )
        except OSError as error:
            own_end.close()
            raise ZygoteDied(f"{command.arguments[0]} cannot be run: {error}") from error
        finally:
            child_end.close()
        own_end.setblocking(False)
        zygote = cls(process, own_end, errors)
        try:
            async with asyncio.timeout(_START_S):
                zygote.features = KernelFeatures(**await read_message(own_end))
        except (TimeoutError, ValueError, OSError) as error:
            await zygote.stop()
            raise ZygoteDied(zygote.stderr_tail() or f"no greeting: {error!r}") from error
        return zygote

    async def send_plan(self, plan: Plan) -> None:
        """Send the plan. Call this once, before the first job. Raises OSError if the zygote has exited."""
        await asyncio.get_running_loop().sock_sendall(self._control, framed(asdict(plan)))

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def jail(self, times: int = 1) -> socket.socket:
        """Create a jail with the plan's time limits multiplied by `times`. Return the socket for its order and result.

        Raises ZygoteDied if the zygote has exited.
        """
        own_end, child_end = socket.socketpair()
        with child_end:
            try:
                socket.send_fds(self._control, [bytes([times])], [child_end.fileno()])
            except OSError as error:
                own_end.close()
                raise ZygoteDied(f"{error}. {self.stderr_tail()}") from error
        own_end.setblocking(False)
        return own_end

    async def stop(self) -> None:
        """Kill the zygote and all of its jails."""
        self._control.close()
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    def stderr_tail(self) -> str:
        path = Path(f"/proc/self/fd/{self._errors.fileno()}")
        return path.read_bytes()[-1500:].decode(errors="replace").strip().rpartition("\n")[2]


async def read_message(end: socket.socket) -> Json:
    """Return the next framed message. Raises OSError if the peer has disconnected, and ValueError if it is not JSON, or
    too long.
    """
    loop = asyncio.get_running_loop()

    async def exactly(count: int) -> bytes:
        pieces = []
        while count:
            piece = await loop.sock_recv(end, min(count, 1 << 20))
            if not piece:
                raise OSError("it closed its connection")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    (length,) = struct.unpack("=I", await exactly(4))
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes is larger than the limit of {MAX_MESSAGE_BYTES}")
    message: Json = json.loads(await exactly(length))
    return message
