"""Program: a command in its own process group, with its output in a log file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from rollyard.records.io.writable import open_private
from rollyard.services.runtime.programs import process_group

TAIL_BYTES = 64 * 1024
STOP_S = 15.0
"""How long a program may take to stop after SIGTERM before its processes are killed."""


class Program:
    """A program that dies with this process, whatever ends it, including everything that the program has started."""

    def __init__(
        self, process: asyncio.subprocess.Process, name: str, log: Path, offset: int, *, ends_abruptly: bool = False
    ) -> None:
        self.name = name
        self.pid = process.pid
        """Process id of the guard, whose only child is the program."""
        self.log = log
        self.started = time.time()
        self.ended: asyncio.Task[int] = asyncio.create_task(self._wait(process))
        """Done when the program and all its descendants have exited; the result is the exit status."""
        self._process = process
        self._offset = offset
        self._ends_abruptly = ends_abruptly
        self._temporary: list[Path] = []

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        log: Path,
        environ: Mapping[str, str],
        cwd: Path,
        title: str,
        *,
        ends_abruptly: bool = False,
    ) -> Self:
        """Run `command` and append its output to `log`, after the line `title`.

        `ends_abruptly`: `stop` kills the program instead of asking it to end.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with open_private(log) as output:
            output.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {title}\n".encode())
            output.flush()
            offset = output.tell()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", str(Path(process_group.__file__))),
                *command,
                cwd=cwd,
                env={"PYTHONUNBUFFERED": "1", **environ},
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which stops its programs in order
            )
        return cls(process, name, log, offset, ends_abruptly=ends_abruptly)

    def remove_at_end(self, folder: Path) -> None:
        """Remove a temporary folder once the program has ended."""
        self._temporary.append(folder)

    @property
    def running(self) -> bool:
        return not self.ended.done()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, grace_s: float = STOP_S) -> None:
        """Stop the program with SIGTERM, or kill it if it takes longer than `grace_s`. Waits for its last process."""
        if not self._ends_abruptly:
            self.send(signal.SIGTERM)
            await asyncio.wait({self.ended}, timeout=grace_s)
        if self.running:
            self.kill()
            await self.ended

    def kill(self) -> None:
        """Kill the program and everything that it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def printed(self) -> str:
        """The program's output, without that of earlier attempts; only its end if it is long."""
        with self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._offset, end - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")

    async def _wait(self, process: asyncio.subprocess.Process) -> int:
        status = await process.wait()
        # If the leader was killed, the others of its group are still running.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        for folder in self._temporary:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return status
