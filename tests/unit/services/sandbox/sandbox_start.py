"""Starting a sandbox on a machine that may not support isolation."""

from __future__ import annotations

import pytest

from rollyard.records.errors import OperatorError
from rollyard.services.sandbox.records import Limits
from rollyard.services.sandbox.sandbox import Sandbox


async def start_or_skip(sandbox: Sandbox) -> None:
    """Start it. If no isolation is available, check that the error is one line with the remedy, and skip the test."""
    try:
        await sandbox.start()
    except OperatorError as error:
        assert "\n" not in str(error)
        assert "bubblewrap" in str(error) and "allow_unsandboxed" in str(error)
        pytest.skip(str(error))


async def start_in_mode_or_skip(mode: str, limits: Limits) -> Sandbox:
    """Return a sandbox that runs in this isolation mode, or skip the test if this machine does not support the mode."""
    sandbox = Sandbox(limits, bubblewrap=None) if mode == "landlock" else Sandbox(limits)
    await start_or_skip(sandbox)
    if sandbox.layers.mode != mode:
        await sandbox.stop()
        pytest.skip(f"{mode} is not available")
    return sandbox
