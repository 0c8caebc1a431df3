"""Reports collection status to the head, where ng_status, the viewer and Prometheus read it.

Also asks the head whether a server came back with other code.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from rollyard.services.errors import Failure
from rollyard.services.head.activity import Collection
from rollyard.services.head.client import RegistryClient
from rollyard.services.rollouts.code_follower import CodeFollower
from rollyard.services.rollouts.collector import STATUS_EVERY_S, Collector


@contextlib.asynccontextmanager
async def reporting(
    link: RegistryClient, output: Path, collector: Collector, follower: CodeFollower
) -> AsyncIterator[None]:
    """Report before the start, once a second, and at the end. A head that does not answer does not stop the
    collection.
    """

    async def report_collection() -> None:
        with contextlib.suppress(Failure):
            await link.report_collection(_now(output, collector, follower))

    async def follow_code() -> None:
        with contextlib.suppress(Failure):
            if await follower.look():
                await report_collection()  # the head holds the reloaded server back until then

    async def keep_reporting() -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            await report_collection()
            await follow_code()

    # The head knows of the collection before its first rollout begins: a reload waits until its rows are marked.
    await report_collection()
    await follow_code()
    task = asyncio.create_task(keep_reporting())
    try:
        yield
    finally:
        task.cancel()
        await report_collection()


def _now(output: Path, collector: Collector, follower: CodeFollower) -> Collection:
    status, failures = collector.status, list(collector.failures)
    return Collection(output=str(output.absolute()), status=status, failures=failures, code=follower.digests)
