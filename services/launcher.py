"""Launcher: where a server's process is started. Here: this machine, the shared interpreter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Protocol

from services.isolation import asks_for_isolation, interpreter_for
from services.roots import INSTALLED
from services.types import Launch


class Process(Protocol):
    """A started server process, wherever it runs."""

    @property
    def pid(self) -> int:
        """Its process id on its machine."""
        ...

    async def wait(self) -> int:
        """Exit status, once it has ended (negative: the signal)."""
        ...

    def terminate(self) -> None:
        """Ask it to stop."""
        ...

    def kill(self) -> None:
        """End it."""
        ...


class Launcher(Protocol):
    """Starts server processes."""

    async def launch(self, launch: Launch, log: Path) -> Process:
        """Start the process that `launch` describes; what it prints goes to `log`."""
        ...


class _LocalProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> int:
        return await self._process.wait()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # The server leads a process group of its own: whatever it started goes with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class LocalLauncher:
    """Starts servers as children of this process. They die with it, whatever it dies of."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    async def launch(self, launch: Launch, log: Path) -> Process:
        """See `Launcher.launch`. A folder that asks for its own environment gets it first."""
        python = Path(sys.executable)
        folder = Path(launch.folder)
        if asks_for_isolation(folder):
            python = await asyncio.to_thread(interpreter_for, folder, self._cache)
        path = os.pathsep.join(filter(None, [str(INSTALLED), os.environ.get("PYTHONPATH", "")]))
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                str(python),
                "-m",
                "services.serve",
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops servers in order
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(launch.model_dump_json().encode())
            await process.stdin.drain()
            process.stdin.close()
        return _LocalProcess(process)
