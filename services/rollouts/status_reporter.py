"""Reports collection status to the head, where ng_status, the viewer and Prometheus read it.

Also stops the collection if the head rejects a server that restarted with different code.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from rollyard.records.activity import Collection
from rollyard.records.errors import Failure
from rollyard.records.run_types import ServerCode
from rollyard.services.head.client import Registry
from rollyard.services.rollouts.collector import STATUS_EVERY_S, Collector


@contextlib.asynccontextmanager
async def reporting(
    registry_client: Registry, output: Path, collector: Collector, code: Mapping[str, ServerCode]
) -> AsyncIterator[None]:
    """Report the status at the start, every second and at the end. If the head does not respond, keep collecting.

    `code`: the code of every server that the rows use.
    """

    def current() -> Collection:
        digests = {name: found.digest for name, found in code.items()}
        status, failures = collector.status, list(collector.failures)
        return Collection(output=str(output.absolute()), status=status, failures=failures, code=digests)

    async def report_collection() -> None:
        with contextlib.suppress(Failure):
            await registry_client.report_collection(current())

    async def stop_if_code_changed() -> None:
        with contextlib.suppress(Failure):
            for server, changes in (await registry_client.directory()).changed_code.items():
                if server in code:
                    collector.stop(
                        f"{server} was restarted with different code ({changes}), which its run does not allow: "
                        "restore the code and repeat the command, or restart ng_run and add --accept-changed-code"
                    )

    async def keep_reporting() -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            await report_collection()
            await stop_if_code_changed()

    await report_collection()
    await stop_if_code_changed()
    task = asyncio.create_task(keep_reporting())
    try:
        yield
    finally:
        task.cancel()
        await report_collection()
