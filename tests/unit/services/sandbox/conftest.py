"""A sandbox of this machine's best isolation, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rollyard.services.sandbox.records import Limits
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.services.sandbox.sandbox_start import started_or_skipped

QUICK = Limits(cpu_s=1, wall_s=3, memory_mb=256, processes=8)


@pytest.fixture(scope="session", params=["bubblewrap", "landlock"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """The best isolation and the next best, where this machine has them."""
    made = Sandbox(QUICK, bubblewrap=None) if request.param == "landlock" else Sandbox(QUICK)
    await started_or_skipped(made)
    if made.layers.mode != request.param:
        await made.stop()
        pytest.skip(f"no {request.param} here")
    yield made
    await made.stop()


@pytest.fixture(scope="session")
async def sandbox() -> AsyncIterator[Sandbox]:
    made = Sandbox(QUICK)
    await started_or_skipped(made)
    yield made
    await made.stop()
