"""The server's end of one zygote: started, asked for jails, ended."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rollyard.services.sandbox.command import Command
from rollyard.services.sandbox.inside.channel import framed
from rollyard.services.sandbox.inside.jail_plan import Plan
from rollyard.services.types import Json

_START_S = 20.0


class ZygoteDied(Exception):
    """The process that jails are forked from is not there; the text is what it said last."""


@dataclass(frozen=True)
class KernelFeatures:
    """What the kernel gives the zygote."""

    seccomp: bool
    landlock: int
    """Its version; 0: none."""


class ZygoteClient:
    """A running zygote."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, errors: IO[bytes]) -> None:
        self._process = process
        self._control = control
        self._errors = errors
        self.offered = KernelFeatures(False, 0)

    @classmethod
    async def start(cls, command: Command, errors: IO[bytes]) -> ZygoteClient:
        """Start `command`; its standard error goes to the file `errors`. Raises ZygoteDied."""
        ours, theirs = socket.socketpair()
        try:
            # From this thread, which must outlive it: bubblewrap dies with the thread that started it.
            process = subprocess.Popen(  # noqa: ASYNC220 (it takes milliseconds)
                command.words,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                env=command.environment,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise ZygoteDied(f"{command.words[0]} cannot be run: {error}") from error
        finally:
            theirs.close()
        ours.setblocking(False)
        link = cls(process, ours, errors)
        try:
            async with asyncio.timeout(_START_S):
                link.offered = KernelFeatures(**await link._greeting())
        except (TimeoutError, ValueError, OSError) as error:
            await link.stop()
            raise ZygoteDied(link.stderr_tail() or f"no greeting: {error!r}") from error
        return link

    async def instruct(self, plan: Plan) -> None:
        """How it locks answers in; once, before the first job. Raises OSError."""
        await asyncio.get_running_loop().sock_sendall(self._control, framed(plan.fields()))

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    def jail(self, times: int = 1) -> socket.socket:
        """The socket of a new jail with `times` the plan's time: the order goes in, the outcome comes out.

        Raises ZygoteDied.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [bytes([times])], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise ZygoteDied(f"{error}. {self.stderr_tail()}") from error
        ours.setblocking(False)
        return ours

    async def stop(self) -> None:
        """End it and every jail of its."""
        self._control.close()
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    def stderr_tail(self) -> str:
        """The last line of its standard error."""
        path = Path(f"/proc/self/fd/{self._errors.fileno()}")
        return path.read_bytes()[-1500:].decode(errors="replace").strip().rpartition("\n")[2]

    async def _greeting(self) -> Json:
        loop = asyncio.get_running_loop()
        received = b""
        while len(received) < 4 or len(received) < 4 + struct.unpack("=I", received[:4])[0]:
            piece = await loop.sock_recv(self._control, 4096)
            if not piece:
                raise OSError("it ended")
            received += piece
        greeting: Json = json.loads(received[4:])
        return greeting
