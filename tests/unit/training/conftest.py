"""Stops the stack on which the tests of training play."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.training.scripted_training import SHARED


@pytest_asyncio.fixture(scope="session", autouse=True)
async def shared_stack() -> AsyncIterator[None]:
    yield
    await SHARED.aclose()
