"""Sandboxes with the isolation modes of this machine, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rollyard.services.sandbox.records import SandboxLimits
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.services.sandbox.trials import start_in_mode_or_skip, start_or_skip

LIMITS = SandboxLimits(cpu_s=1, wall_s=3, memory_mb=256, processes=8)


@pytest.fixture(scope="session", params=["bubblewrap", "landlock"])
async def any_sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    sandbox = await start_in_mode_or_skip(request.param, LIMITS)
    yield sandbox
    await sandbox.stop()


@pytest.fixture(scope="session")
async def sandbox() -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(LIMITS)
    await start_or_skip(sandbox)
    yield sandbox
    await sandbox.stop()
