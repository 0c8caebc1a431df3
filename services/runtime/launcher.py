"""Launcher: starts server processes. LocalLauncher starts them on this host.

Importing the framework and a server takes half a second of CPU time. `ng_run` has imported all of it to read its
configs, so it forks the servers' processes before its event loop runs, and they wait for their launches. A restarted
server, which may have new code, and one with its own Python environment get a new interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import IO, NoReturn, Protocol, Self

from rollyard.records.locked_files import open_private
from rollyard.records.run_types import Launch
from rollyard.services.config.venv import interpreter_for, needs_isolation
from rollyard.services.runtime import serve
from rollyard.services.runtime.process_setup import die_with_parent


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

    def __init__(self, pid: int, reap: Callable[[], int]) -> None:
        """`reap`: waits for the process and returns its exit status (negative: a signal number)."""
        self.pid = pid
        self._wait_for_exit = reap
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
        assert process.stdin is not None
        started = cls(process.pid, process.wait)
        await asyncio.to_thread(_feed, process.stdin, stdin_data)
        return started

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Once the process is reaped, its id may belong to an unrelated process group.
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _watch(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed because this process is exiting
            self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        self.kill()  # children left in the group
        self._ended.set_result(self._wait_for_exit())


def _feed(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.write(data)
        pipe.flush()
    with contextlib.suppress(BrokenPipeError):
        pipe.close()


@dataclass(frozen=True)
class ForkedProcess:
    """A child process that waits for its log's path and its launch."""

    pid: int
    inbox: IO[bytes]


@contextlib.contextmanager
def forked_processes(count: int) -> Iterator[list[ForkedProcess]]:
    """Fork processes for servers. Those that are still in the list afterwards end. Call this before any loop runs.

    The list is empty if a module that was imported has started a thread or loaded CUDA, which children could not use.
    """
    forked: list[ForkedProcess] = []
    if threading.active_count() > 1 or "/libcuda.so" in Path("/proc/self/maps").read_text():
        count = 0
    if count:
        gc.collect()
        gc.freeze()  # otherwise the collections of each child would write to, and so copy, the pages of all objects
        sys.stdout.flush()
    parent_pid = os.getpid()
    for _ in range(count):
        read, write = os.pipe()
        if not (pid := os.fork()):
            os.close(write)
            for other in forked:
                other.inbox.close()
            _await_launch(read, parent_pid)
        os.close(read)
        forked.append(ForkedProcess(pid, os.fdopen(write, "wb")))
    try:
        yield forked
    finally:
        for process in forked:
            process.inbox.close()
            os.waitpid(process.pid, 0)


def _await_launch(inbox: int, parent_pid: int) -> NoReturn:
    os.setsid()
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_DFL)
    die_with_parent(parent_pid)
    with os.fdopen(inbox, "rb") as pipe:
        log, _, launch = pipe.read().partition(b"\n")
    if not launch:
        os._exit(0)  # nothing was started
    with Path(os.devnull).open("rb") as nothing, open_private(Path(os.fsdecode(log))) as output:
        for number, file in enumerate((nothing, output, output)):
            os.dup2(file.fileno(), number)
    os.environ["PYTHONUNBUFFERED"] = "1"
    for stream in (sys.__stdout__, sys.__stderr__):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()  # `random` seeds itself in a child
    try:
        serve.run(Launch.model_validate_json(launch))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)


def _exit_status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class LocalLauncher:
    """Starts servers as child processes, which the kernel kills when this process exits."""

    def __init__(
        self, cache: Path, environ: Mapping[str, str] = os.environ, forked: list[ForkedProcess] | None = None
    ) -> None:
        """`forked`: processes that use this process's environment and modules, for the servers that start first."""
        self._cache = cache
        self._environ = environ
        self._forked = forked or []

    async def launch(self, launch: Launch, log: Path) -> Process:
        """Start the process. Builds a Python environment for it first if the server's folder requires one."""
        python = Path(sys.executable)
        stdin_data = launch.model_dump_json().encode()
        folder = Path(launch.folder)
        if needs_isolation(folder):
            python = await asyncio.to_thread(interpreter_for, folder, self._cache)
        elif self._forked:
            process = self._forked.pop()
            await asyncio.to_thread(_feed, process.inbox, os.fsencode(log) + b"\n" + stdin_data)
            return LocalProcess(process.pid, partial(_exit_status, process.pid))
        environment = {**self._environ, "PYTHONUNBUFFERED": "1"}
        # -P: files in the working directory must not shadow modules (the same holds for ng_run itself).
        command = [str(python), "-P", "-m", "rollyard.services.runtime.serve"]
        return await LocalProcess.start(command, stdin_data, log, environment)
