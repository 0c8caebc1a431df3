"""Constructs a server in a separate process to check whether it would start."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rollyard.records.errors import EXIT_OPERATOR, OperatorError, RunError
from rollyard.records.run_types import Keys, Launch
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.runtime.launcher import Launcher


async def check_in_process(spec: ServerSpec, keys: Keys, launcher: Launcher) -> None:
    """Load the server's current code, construct the server, and exit. Raises OperatorError or RunError on failure."""
    launch = Launch(
        name=spec.name,
        instance=spec.name,
        family=spec.family,
        implementation=spec.implementation,
        folder=str(spec.folder),
        settings=spec.raw,
        keys=keys,
        head_url="",
        parent_pid=os.getpid(),
        check_only=True,
    )
    with tempfile.TemporaryFile() as unnamed:  # it disappears even if this process is killed
        log = Path(f"/proc/{os.getpid()}/fd/{unnamed.fileno()}")  # also for a process that a launcher asks to open it
        process = await launcher.launch(launch, log)
        try:
            status = await process.wait()
        finally:
            process.kill()
        if status:
            lines = os.pread(unnamed.fileno(), 1 << 20, 0).decode("utf-8", "replace").strip().splitlines()
            kind = OperatorError if status == EXIT_OPERATOR else RunError
            raise kind(lines[-1] if lines else f"{spec.name} exited with status {status} during the check")
