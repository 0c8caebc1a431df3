"""The sandbox that the tests of the programming environments share; imported by conftest files."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rollyard.services.sandbox.records import SandboxLimits
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.services.sandbox.trials import start_or_skip


@pytest.fixture(scope="session")
async def sandbox() -> AsyncIterator[Sandbox]:
    shared = Sandbox(SandboxLimits(wall_s=30))
    await start_or_skip(shared)
    yield shared
    await shared.stop()
