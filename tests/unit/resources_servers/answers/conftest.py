"""Shared worker pools for the tests of this folder, because their processes take seconds to start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from rollyard.resources_servers.answers.worker_pool import WorkerPool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def workers() -> AsyncIterator[WorkerPool]:
    """One worker with little CPU time per comparison, because tests wait until it is used up."""
    pool = WorkerPool(1, 0.5)
    yield pool
    await pool.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def patient_workers() -> AsyncIterator[WorkerPool]:
    """One worker with enough CPU time for every pair, even on a busy machine."""
    pool = WorkerPool(1, 5.0)
    yield pool
    await pool.close()
