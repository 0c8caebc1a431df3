"""Commands as processes that are forked from a process which has already imported them.

Importing a command takes up to three seconds of CPU time, and some suites start the same one fifty times. Each command
has its own process, folder, environment variables and signals, as if it had been started from a shell.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from rollyard.records.data_files import INSTALLED
from tests.support.waiting import deadline_s

_SERVER = "from tests.support.preloaded import serve; serve()()"
_MOST_BYTES = 1 << 17


class PreloadedProcess:
    """A command that runs. Its parent is not this process, which learns its end from a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("r")
        connection.settimeout(deadline_s())
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self) -> int:
        """Return the exit status; raises TimeoutError if the command hangs."""
        if self.returncode is None:
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._connection.close()
        return self.returncode


class Preloaded:
    """A process that has imported a command of `rollyard.cli`, and other modules that the command imports."""

    def __init__(self, command: str, *modules: str) -> None:
        self._modules = (f"rollyard.cli.{command.removeprefix('ng_')}", *modules)
        self._command = command
        self._control: socket.socket | None = None
        self._starting = threading.Lock()

    def start(
        self,
        arguments: Sequence[object],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: IO[bytes] | int,
        stderr: IO[bytes] | int = 2,
    ) -> PreloadedProcess:
        ours, theirs = socket.socketpair()
        request = {"arguments": [self._command, *map(str, arguments)], "cwd": str(cwd), "env": dict(env)}
        descriptors = [one if isinstance(one, int) else one.fileno() for one in (stdout, stderr)]
        with theirs:
            socket.send_fds(self._server(), [json.dumps(request).encode()], [*descriptors, theirs.fileno()])
        return PreloadedProcess(ours)

    def run(
        self, arguments: Sequence[object], *, cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            status = self.start(arguments, cwd=cwd, env=env, stdout=out, stderr=err).wait()
            texts = [_text(file) for file in (out, err)]
        return subprocess.CompletedProcess([self._command, *map(str, arguments)], status, *texts)

    def _server(self) -> socket.socket:
        with self._starting:
            if self._control is None:
                self._control = self._start_server()
            return self._control

    def _start_server(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for size in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            ours.setsockopt(socket.SOL_SOCKET, size, _MOST_BYTES)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(theirs.fileno()), *self._modules],
                cwd=INSTALLED,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(process.wait)
        atexit.register(ours.close)  # called first
        return ours


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


class _Command:
    """What a forked process runs; called with an empty stack, so that the interpreter ends as that of any command."""

    def __init__(self, module: str, request: Mapping[str, object], descriptors: Sequence[int]) -> None:
        self._module = module
        self._request = request
        self.descriptors = descriptors

    def __call__(self) -> None:
        for number, descriptor in enumerate(self.descriptors, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(str(self._request["cwd"]))
        os.environ.clear()
        os.environ.update(self._request["env"])  # type: ignore[call-overload]
        sys.argv = list(self._request["arguments"])  # type: ignore[call-overload]
        random.seed()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        importlib.import_module(self._module).main()


def serve() -> _Command:
    """Import the modules, then fork a process for each request. Only these processes return."""
    control, modules = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the tests end the commands
    for module in modules:
        importlib.import_module(module)
    sys.path.remove("")
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            return _watched(_Command(modules[0], json.loads(message), descriptors[:2]), descriptors[2])
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _watched(command: _Command, connection: int) -> _Command:
    """Return in the command's process; this process reports its id and its exit status, and ends."""
    pid = os.fork()
    if pid == 0:
        os.close(connection)
        return command
    for descriptor in command.descriptors:
        os.close(descriptor)
    os.write(connection, f"{pid}\n".encode())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(connection, f"{status}\n".encode())
    os._exit(0)
