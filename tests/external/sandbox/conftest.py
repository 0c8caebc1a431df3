"""Sandboxes for complete datasets: the best isolation mode of this machine, and each that it supports."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rollyard.services.sandbox.records import SandboxLimits
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.resources_servers.python_answers.sandboxes import sandbox
from tests.unit.services.sandbox.trials import start_in_mode_or_skip

__all__ = ["sandbox"]


@pytest.fixture(scope="session", params=["bubblewrap", "landlock"])
async def any_sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    started = await start_in_mode_or_skip(request.param, SandboxLimits(wall_s=30))
    yield started
    await started.stop()
