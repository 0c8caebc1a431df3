"""Telling: a collection says how it goes to the head, where ng_status, the viewer and Prometheus find it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from services.collector import STATUS_EVERY_S, Collector
from services.errors import Failure
from services.headlink import HeadLink
from services.running import Collection


@contextlib.asynccontextmanager
async def telling(link: HeadLink, output: Path, collector: Collector) -> AsyncIterator[None]:
    """Tell once a second and once more at the end. A head that does not listen changes nothing for the collection."""

    async def tell() -> None:
        with contextlib.suppress(Failure):
            await link.tell(_now(output, collector))

    async def keep_telling() -> None:
        while True:
            await tell()
            await asyncio.sleep(STATUS_EVERY_S)

    task = asyncio.create_task(keep_telling())
    try:
        yield
    finally:
        task.cancel()
        await tell()


def _now(output: Path, collector: Collector) -> Collection:
    return Collection(output=str(output.absolute()), status=collector.status, failures=list(collector.failures))
