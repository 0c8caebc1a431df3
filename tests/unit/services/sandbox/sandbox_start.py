"""Starting a sandbox on a machine that may not support isolation."""

from __future__ import annotations

import pytest

from rollyard.services.errors import OperatorError
from rollyard.services.sandbox.sandbox import Sandbox


async def start_or_skip(sandbox: Sandbox) -> None:
    """Start it. If no isolation is available, check that the error is one line with the remedy, and skip the test."""
    try:
        await sandbox.start()
    except OperatorError as error:
        assert "\n" not in str(error)
        assert "Install bubblewrap and allow user namespaces, or set allow_unsandboxed: true" in str(error)
        pytest.skip(str(error))
