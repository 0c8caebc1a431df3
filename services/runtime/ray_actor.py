"""ServerHost: the Ray actor beside one server process. Ray carries this module to the node as it stands.

It starts `services/runtime/serve.py` as its child, passes signals on, and hands out what the server prints.
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

from rollyard.services.types import Json


class ServerHost:
    """The actor beside one server process. Sent to the node as it stands: a worker needs no package of ours for it."""

    def __init__(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the actor and leaves no file behind

    async def start(
        self, launch: Json, python: str, folder: str, environ: dict[str, str], cache: str | None, on_network: bool
    ) -> int:
        """Start the server; its process id. With `cache`, in the environment that its folder asks for."""
        import ray

        if cache is not None:
            from rollyard.services.config.venv import interpreter_for

            python = str(await asyncio.to_thread(interpreter_for, Path(launch["folder"]), Path(cache)))
        launch = {**launch, "parent_pid": os.getpid()}
        if on_network:
            here = ray.util.get_node_ip_address()
            launch |= {"advertise": here, "settings": {"host": here, **launch["settings"]}}
        # Ray's workers have a PYTHONPATH of their own; the server runs with that of the ng_run that placed it.
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and name[:4] != "RAY_"}
        self._process = subprocess.Popen(  # noqa: ASYNC220 (it takes milliseconds)
            [python, "-m", "rollyard.services.runtime.serve"],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            cwd=folder,
            env={**environ, **own, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self._ended = asyncio.create_task(self._watch())
        await asyncio.to_thread(self._tell, json.dumps(launch).encode())
        return self._process.pid

    async def follow(self, offset: int, most: int) -> tuple[bytes, int | None]:
        """What it printed from `offset` on, waiting a second for it at most; with the last of it, the exit status."""
        if os.fstat(self._output.fileno()).st_size < offset + most:
            await asyncio.wait({self._ended}, timeout=1.0)
        ended = self._ended.done()
        text = os.pread(self._output.fileno(), most, offset)
        return text, self._ended.result() if ended and len(text) < most else None

    async def send(self, number: int) -> None:
        """Signal the server and whatever it started."""
        # Once the process is reaped, its number may be the group of a stranger.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def _watch(self) -> int:
        await asyncio.to_thread(os.waitid, os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        await self.send(signal.SIGKILL)  # what it may have left in its group
        return self._process.wait()

    def _tell(self, told: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(told)
            self._process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
