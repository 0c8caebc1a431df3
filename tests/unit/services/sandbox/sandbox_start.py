"""Starting a sandbox on a machine that may offer no isolation."""

from __future__ import annotations

import pytest

from rollyard.services.errors import OperatorError
from rollyard.services.sandbox.sandbox import Sandbox


async def started_or_skipped(sandbox: Sandbox) -> None:
    """Start it; where nothing isolates, the refusal is what there is to test: one line that names the remedy."""
    try:
        await sandbox.start()
    except OperatorError as error:
        assert "\n" not in str(error)
        assert "Install bubblewrap and allow user namespaces, or set allow_unsandboxed: true" in str(error)
        pytest.skip(str(error))
