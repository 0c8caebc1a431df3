"""The Ray actors that run one process each. Ray pickles this module by value, so its workers need not import Rollyard.

ProgramHost   any command, such as a trainer on the GPUs that its actor has reserved
ServerHost    a server: `services/runtime/serve.py`

They start a child process, forward signals to it, and return its output.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from rollyard.records.types import Json


class ProgramHost:
    def __init__(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the actor and leaves no file

    async def run(self, command: list[str], folder: str, environ: dict[str, str], stdin_data: bytes | None) -> int:
        """Start the command and return its process id. `stdin_data` None: its standard input stays open."""
        # Ray's workers set their own PYTHONPATH, but the command must use that of its caller.
        node_environ = {
            name: value for name, value in os.environ.items() if name != "PYTHONPATH" and name[:4] != "RAY_"
        }
        self._process = subprocess.Popen(  # noqa: ASYNC220 (it takes milliseconds)
            command,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            cwd=folder,
            env={**environ, **node_environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self._ended = asyncio.create_task(self._watch())
        if stdin_data is not None:
            await asyncio.to_thread(self._write_stdin, stdin_data)
        return self._process.pid

    async def follow(self, offset: int, max_bytes: int) -> tuple[bytes, int | None]:
        """Return the output from `offset` on, plus the exit status if there is no more. Waits up to a second."""
        if os.fstat(self._output.fileno()).st_size < offset + max_bytes:
            await asyncio.wait({self._ended}, timeout=1.0)
        ended = self._ended.done()
        text = os.pread(self._output.fileno(), max_bytes, offset)
        return text, self._ended.result() if ended and len(text) < max_bytes else None

    async def send(self, number: int) -> None:
        # Once the process is reaped, its id may belong to an unrelated process group.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def send_to_leader(self, number: int) -> None:
        """Send a signal to the command alone, which informs the processes that it has started."""
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def _watch(self) -> int:
        await asyncio.to_thread(os.waitid, os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        await self.send(signal.SIGKILL)  # children left in the group
        return self._process.wait()

    def _write_stdin(self, stdin_data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(stdin_data)
            self._process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


class ServerHost(ProgramHost):
    """The actor that runs one server process."""

    async def start(
        self, launch: Json, python: str, folder: str, environ: dict[str, str], cache: str | None, on_network: bool
    ) -> int:
        """Start the server and return its process id. `cache`: run it in a virtual environment for its folder."""
        import ray

        if cache is not None:
            from rollyard.services.config.venv import interpreter_for

            python = str(await asyncio.to_thread(interpreter_for, Path(launch["folder"]), Path(cache)))
        launch = {**launch, "parent_pid": os.getpid()}
        if on_network:
            node_ip = ray.util.get_node_ip_address()
            launch |= {"advertise": node_ip, "settings": {"host": node_ip, **launch["settings"]}}
        command = [python, "-P", "-m", "rollyard.services.runtime.serve"]  # -P: as in launcher.py
        return await self.run(command, folder, environ, json.dumps(launch).encode())
