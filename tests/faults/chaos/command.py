"""Command: a command as a process, started normally or forked from a process that has already imported the stack."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Protocol

from tests.faults.chaos.invariants import Broken, no_crash
from tests.support.waiting import deadline_s

ENTRIES = {
    "ng_run": "rollyard.cli.run",
    "ng_collect_rollouts": "rollyard.cli.collect_rollouts",
    "ng_merge": "rollyard.cli.merge",
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

    async def ends(self) -> int:
        """Wait for the exit status. Raises Broken also for a crash."""
        status = await self.exit_status()
        no_crash(self.output)
        return status
