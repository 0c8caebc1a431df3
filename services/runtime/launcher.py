"""Launcher: where a server's process is started. Here: this machine, the shared interpreter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from rollyard.services.config.venv import interpreter_for, needs_isolation
from rollyard.services.types import Launch


class Process(Protocol):
    """A started server process, wherever it runs."""

    @property
    def pid(self) -> int:
        """Its process id on its machine."""
        ...

    async def wait(self) -> int:
        """Exit status, once it and all that it started have been ended (negative: the signal)."""
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


class LocalProcess:
    """A child of this process that leads a process group of its own: whatever it started ends with it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        threading.Thread(target=self._watch, daemon=True).start()

    @classmethod
    async def start(cls, command: Sequence[str], told: bytes, log: Path, environment: Mapping[str, str]) -> Self:
        """Run `command` with `told` on its standard input; what it prints goes to `log`. Raises OSError."""
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: ASYNC220 (it takes milliseconds)
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops servers in order
            )
        started = cls(process)
        await asyncio.to_thread(_feed, process, told)
        return started

    async def wait(self) -> int:
        """As `Process.wait`."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """As `Process.terminate`."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """As `Process.kill`; the whole group."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Once the process is reaped, its number may be the group of a stranger.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _watch(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed: this process ends too
            self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        self.kill()  # what it may have left in its group
        self._ended.set_result(self._process.wait())


def _feed(process: subprocess.Popen[bytes], told: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(told)
        process.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


class LocalLauncher:
    """Starts servers as children of this process. They die with it, whatever it dies of."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    async def launch(self, launch: Launch, log: Path) -> Process:
        """See `Launcher.launch`. A folder that asks for its own environment gets it first."""
        python = Path(sys.executable)
        folder = Path(launch.folder)
        if needs_isolation(folder):
            python = await asyncio.to_thread(interpreter_for, folder, self._cache)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        told = launch.model_dump_json().encode()
        return await LocalProcess.start([str(python), "-m", "rollyard.services.runtime.serve"], told, log, environment)
