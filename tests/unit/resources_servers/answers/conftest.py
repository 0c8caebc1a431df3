"""Shared worker pools for the tests of this folder, because their processes take seconds to start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from rollyard.resources_servers.answers.worker_pool import WorkerPool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def workers() -> AsyncIterator[WorkerPool]:
    """With little CPU time for a comparison: tests wait until it is over."""
    pool = WorkerPool(2, 0.5)
    yield pool
    await pool.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def patient() -> AsyncIterator[WorkerPool]:
    """With enough CPU time for every pair, on a busy machine too."""
    pool = WorkerPool(2, 5.0)
    yield pool
    await pool.close()
