"""ForeignProcess: a program of NeMo Gym as a process of the supervisor, with everything that it starts."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from rollyard.services.runtime.programs.program import Program


class ForeignProcess:
    """A program with a guard around it, which kills all its descendants when it ends, or when ng_run is killed."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @property
    def pid(self) -> int:
        """Process id of the program itself; of its guard if it has not started yet, or has ended."""
        try:
            children = Path(f"/proc/{self._program.pid}/task/{self._program.pid}/children").read_text().split()
        except OSError:
            children = []
        return int(children[0]) if children else self._program.pid

    async def wait(self) -> int:
        return await asyncio.shield(self._program.ended)

    def terminate(self) -> None:
        self._program.send(signal.SIGTERM)

    def kill(self) -> None:
        self._program.kill()
