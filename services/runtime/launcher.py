"""Launcher: starts server processes. LocalLauncher starts them on this host."""

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

from rollyard.records.locked_files import open_private
from rollyard.records.run_types import Launch
from rollyard.services.config.venv import interpreter_for, needs_isolation


class Process(Protocol):
    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Wait for the process and its children to exit. Return the exit status (negative: a signal number)."""
        ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Launcher(Protocol):
    async def launch(self, launch: Launch, log: Path) -> Process:
        """Start the process described by `launch` and append its output to `log`."""
        ...


class LocalProcess:
    """A child process with its own process group, which is killed when the process exits."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        threading.Thread(target=self._watch, daemon=True).start()

    @classmethod
    async def start(cls, command: Sequence[str], stdin_data: bytes, log: Path, environment: Mapping[str, str]) -> Self:
        """Run `command` with `stdin_data` as its standard input and append its output to `log`. Raises OSError."""
        with open_private(log) as output:
            process = subprocess.Popen(  # noqa: ASYNC220 (it takes milliseconds)
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops servers in order
            )
        started = cls(process)
        await asyncio.to_thread(_feed, process, stdin_data)
        return started

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Once the process is reaped, its id may belong to an unrelated process group.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _watch(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed because this process is exiting
            self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        self.kill()  # children left in the group
        self._ended.set_result(self._process.wait())


def _feed(process: subprocess.Popen[bytes], stdin_data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(stdin_data)
        process.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


class LocalLauncher:
    """Starts servers as child processes, which the kernel kills when this process exits."""

    def __init__(self, cache: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._cache = cache
        self._environ = environ

    async def launch(self, launch: Launch, log: Path) -> Process:
        """Start the process. Builds a Python environment for it first if the server's folder requires one."""
        python = Path(sys.executable)
        folder = Path(launch.folder)
        if needs_isolation(folder):
            python = await asyncio.to_thread(interpreter_for, folder, self._cache)
        environment = {**self._environ, "PYTHONUNBUFFERED": "1"}
        stdin_data = launch.model_dump_json().encode()
        # -P: files in the working directory must not shadow modules (the same holds for ng_run itself).
        command = [str(python), "-P", "-m", "rollyard.services.runtime.serve"]
        return await LocalProcess.start(command, stdin_data, log, environment)
