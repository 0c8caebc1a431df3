"""The sandbox that tests of the programming worlds share; a conftest imports it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from services.sandbox.records import Limits
from services.sandbox.sandbox import Sandbox


@pytest.fixture(scope="session")
async def sandbox() -> AsyncIterator[Sandbox]:
    made = Sandbox(Limits(wall_s=30))
    await made.start()
    yield made
    await made.stop()
