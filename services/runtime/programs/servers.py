"""Waits until an `ng_run` that this process has started is ready."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from rollyard.records.run_types import HeadFile
from rollyard.services.runtime.programs.program import Program
from rollyard.services.runtime.programs.program_errors import raise_for
from rollyard.services.runtime.run_dir import running_heads

POLL_S = 0.05
_RUN = re.compile(r"^run (\S+): \d+ servers, head (\S+)$", re.MULTILINE)
_READY = "servers ready!"


async def until_ready(program: Program, here: Path, show: Callable[[str], None] = lambda printed: None) -> HeadFile:
    """Wait until all servers of an `ng_run`, started in the folder `here`, are ready; return its head.

    `show` receives the output so far, whenever it is read. Raises OperatorError or RunError if the program ends.
    """
    while _READY not in (printed := program.printed()):
        show(printed)
        await asyncio.wait({program.ended}, timeout=POLL_S)
        if not program.running:
            raise_for(program)
    show(printed)
    found = _RUN.search(printed)
    run_id, url = (found[1], found[2]) if found else ("", "")
    heads = [head for head in running_heads(here) if head.run_id == run_id]
    return heads[0] if heads else HeadFile(run_id=run_id, url=url, pid=0)
