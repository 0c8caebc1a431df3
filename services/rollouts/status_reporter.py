"""Telling: a collection says how it goes to the head, where ng_status, the viewer and Prometheus find it.

It hears from the head whether a server came back with other code than it had.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from rollyard.services.errors import Failure
from rollyard.services.head.activity import Collection
from rollyard.services.head.client import RegistryClient
from rollyard.services.rollouts.collector import STATUS_EVERY_S, Collector


@contextlib.asynccontextmanager
async def reporting(link: RegistryClient, output: Path, collector: Collector) -> AsyncIterator[None]:
    """Tell once a second and once more at the end. A head that does not listen changes nothing for the collection."""

    async def report_collection() -> None:
        with contextlib.suppress(Failure):
            await link.report_collection(_now(output, collector))

    async def hear() -> None:
        with contextlib.suppress(Failure):
            for server, difference in (await link.directory()).changed_code.items():
                collector.stop(
                    f"{server} was started again with other code ({difference}), which its run refuses: restore the "
                    "code and repeat the command, or restart ng_run and add +accept_changed_code=true"
                )

    async def keep_reporting() -> None:
        while True:
            await report_collection()
            await hear()
            await asyncio.sleep(STATUS_EVERY_S)

    task = asyncio.create_task(keep_reporting())
    try:
        yield
    finally:
        task.cancel()
        await report_collection()


def _now(output: Path, collector: Collector) -> Collection:
    return Collection(output=str(output.absolute()), status=collector.status, failures=list(collector.failures))
