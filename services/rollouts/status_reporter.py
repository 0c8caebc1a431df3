"""Reports collection status to the head, where ng_status, the viewer and Prometheus read it.

Also checks with the head whether a server restarted with different code.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from rollyard.records.activity import Collection
from rollyard.records.errors import Failure
from rollyard.services.head.client import Registry
from rollyard.services.rollouts.code_follower import CodeFollower
from rollyard.services.rollouts.collector import STATUS_EVERY_S, Collector


@contextlib.asynccontextmanager
async def reporting(
    registry_client: Registry, output: Path, collector: Collector, follower: CodeFollower
) -> AsyncIterator[None]:
    """Report the status at the start, every second and at the end. If the head does not respond, keep collecting."""

    async def report_collection() -> None:
        with contextlib.suppress(Failure):
            await registry_client.report_collection(_current_report(output, collector, follower))

    async def follow_code() -> None:
        with contextlib.suppress(Failure):
            if await follower.follow():
                await report_collection()  # until then, the head withholds the reloaded server

    async def keep_reporting() -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            await report_collection()
            await follow_code()

    # The head must know the collection before its first rollout starts, so that a reload waits until rows are marked.
    await report_collection()
    await follow_code()
    task = asyncio.create_task(keep_reporting())
    try:
        yield
    finally:
        task.cancel()
        await report_collection()


def _current_report(output: Path, collector: Collector, follower: CodeFollower) -> Collection:
    status, failures = collector.status, list(collector.failures)
    return Collection(output=str(output.absolute()), status=status, failures=failures, code=follower.digests)
