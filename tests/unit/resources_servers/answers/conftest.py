"""Pools of comparers for the tests of this folder: their processes take seconds to start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from rollyard.resources_servers.answers.worker_pool import Workers


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def workers() -> AsyncIterator[Workers]:
    """With little CPU time for a comparison: tests wait until it is over."""
    pool = Workers(2, 0.5)
    yield pool
    await pool.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def patient() -> AsyncIterator[Workers]:
    """With enough CPU time for every pair, on a busy machine too."""
    pool = Workers(2, 5.0)
    yield pool
    await pool.close()
