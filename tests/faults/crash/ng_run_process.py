"""`ng_run` as a process: its output, its child processes, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import orjson

from tests.support.processes import processes_with
from tests.support.waiting import deadline_s, until

from .harness import RUN, environment, forked_status

MARK = "ROLLYARD_CRASH_TEST"
"""A variable that every process of a run inherits, by which all are found."""


class Running:
    """One `ng_run`."""

    def __init__(self, process: asyncio.subprocess.Process, here: Path, mark: str) -> None:
        self.here = here
        self.output = ""
        self._process = process
        self._mark = mark
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def prints(self, text: str) -> None:
        await until(lambda: text in self.output or self._reading.done(), f"ng_run prints {text!r}")
        assert text in self.output, self.output

    async def pids(self) -> set[int]:
        """The servers, as reported by `ng_status +json=true`."""
        log = self.here / "status.log"
        log.unlink(missing_ok=True)
        exit_status = await forked_status(["+json=true"], log, self.here).wait()
        assert exit_status == 0, log.read_text()
        return {shown["pid"] for shown in orjson.loads(log.read_bytes())}

    async def ends(self) -> int:
        """Wait for the end of the process and of its output; return the exit status."""
        await asyncio.wait_for(self._reading, deadline_s())
        return await asyncio.wait_for(self._process.wait(), deadline_s())

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def left_behind(self) -> list[int]:
        return list(processes_with(MARK, self._mark))

    async def leaves_nothing(self) -> None:
        await until(lambda: not self.left_behind(), "every process of the run is gone")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.output += line.decode()


@contextlib.asynccontextmanager
async def ng_run(here: Path, *arguments: str) -> AsyncIterator[Running]:
    mark = secrets.token_hex(8)
    process = await asyncio.create_subprocess_exec(
        *RUN,
        *arguments,
        cwd=here,
        env={**environment(), MARK: mark},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    running = Running(process, here, mark)
    try:
        yield running
    finally:
        for pid in running.left_behind():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await running.ends()
