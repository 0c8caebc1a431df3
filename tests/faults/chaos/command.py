"""Command: a command as a process, started normally or forked from a process that has already imported the stack."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.faults.chaos.invariants import Broken
from tests.support.waiting import deadline_s

ENTRIES = {
    "ng_run": "rollyard.cli.run",
    "ng_collect_rollouts": "rollyard.cli.collect_rollouts",
    "ng_status": "rollyard.cli.status",
    "ng_reward_profile": "rollyard.cli.reward_profile",
    "ng_viewer": "rollyard.cli.viewer",
}


class Process(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...


class Command:
    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def output(self) -> str:
        """Output so far, of stdout and stderr."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def ended(self) -> bool:
        return self.process.returncode is not None

    def signal(self, number: signal.Signals) -> None:
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def exit_status(self, limit_s: float | None = None) -> int:
        """Wait for the exit status. Raises Broken after a limit that is far beyond every deadline of the stack."""
        limit_s = limit_s or 8 * deadline_s()
        try:
            return await asyncio.wait_for(asyncio.shield(self.process.wait()), limit_s)
        except TimeoutError:
            raise Broken(f"a command did not end within {limit_s:g} s; its output:\n{self.output[-1500:]}") from None


class Forked:
    def __init__(self) -> None:
        self.pid = 0
        self.started = asyncio.Event()
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        return self._status.result() if self._status.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._status)

    def end(self, status: int) -> None:
        if not self._status.done():
            self._status.set_result(status)


class Forks:
    """Forks commands from one process that has imported the stack."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._forked: list[Forked] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, environment: Mapping[str, str], here: Path) -> Forks:
        """Start the process and import the stack with the given environment variables."""
        source = Path(__file__).with_name("forking.py").read_text()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", source, *ENTRIES.values()),
            cwd=here,
            env=dict(environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def fork(self, name: str, arguments: Sequence[str], here: Path, log: Path) -> Forked:
        forked = Forked()
        self._forked.append(forked)
        order = {
            "name": name,
            "module": ENTRIES[name],
            "arguments": list(arguments),
            "here": str(here),
            "log": str(log),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**order, "number": len(self._forked) - 1}).encode() + b"\n")
        await self._process.stdin.drain()
        await forked.started.wait()
        return forked

    async def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            event, number, value = line.split()
            if event == b"started":
                self._forked[int(number)].pid = int(value)
                self._forked[int(number)].started.set()
            else:
                self._forked[int(number)].end(int(value))
        for forked in self._forked:
            forked.started.set()
            forked.end(-signal.SIGKILL)
