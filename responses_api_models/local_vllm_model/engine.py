"""Runs one replica of vLLM and restarts it when it dies. Its URL changes with every start, so no episode outlives its
engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from rollyard.records.errors import Failure, RunError
from rollyard.responses_api_models.local_vllm_model.engine_process import EngineProcess
from rollyard.responses_api_models.local_vllm_model.startup import EngineStart, StartPlan, ending
from rollyard.services.backoff import Restarts

log = logging.getLogger(__name__)

HEALTH_S = 0.25
"""Interval between health checks. It is short so that calls to a dead engine are retried within a second."""


class Engine:
    """One vLLM replica. Calls `up` with its URL when it is ready, and `down` when it is no longer ready.

    `up` can reject an engine that fails to load the policy's weights by raising Failure.
    """

    def __init__(
        self,
        plan: StartPlan,
        *,
        up: Callable[[str], Awaitable[None]],
        down: Callable[[str], None],
        restarts: Restarts | None = None,
    ) -> None:
        self.plan = plan
        self.is_up = False
        self._up = up
        self._down = down
        self._restarts = restarts or Restarts(first_pause_s=1.0, longest_pause_s=60.0)
        self._start = EngineStart(plan)
        self._pause_s = 0.0
        self._failure_reason = ""
        self._keep_task: asyncio.Task[None] | None = None

    @property
    def phase(self) -> str:
        """The startup phase; empty while the engine is up."""
        return "" if self.is_up else self._start.phase

    @property
    def url(self) -> str:
        return self._start.url

    def give_up(self, why: str) -> None:
        """Treat the engine as dead, so it is restarted."""
        self._failure_reason = why

    async def start(self) -> None:
        """Start the engine and keep it running. Raises RunError if it does not start, or Failure from `up`."""
        process = await self._bring_up()
        self._keep_task = asyncio.create_task(self._keep_running(process))

    async def stop(self) -> None:
        """Stop the engine and all its processes."""
        if self._keep_task is not None:
            self._keep_task.cancel()
            await asyncio.wait([self._keep_task])
        self._close()
        await self._start.end()

    async def _keep_running(self, process: EngineProcess) -> None:
        while True:
            started = time.monotonic()
            why = await self._wait_for_death(process)
            self._close()
            uptime_s = time.monotonic() - started
            if uptime_s > self._restarts.reset_after_s:
                self._pause_s = 0.0
            title, log_file = self.plan.title, self.plan.log_file
            log.error("%s %s after %.0f s; restarting it; log: %s", title, why, uptime_s, log_file)
            await process.stop()  # its GPU memory is needed
            process = await self._restart()

    async def _restart(self) -> EngineProcess:
        while True:
            self._pause_s = self._restarts.next_pause_s(self._pause_s)
            await asyncio.sleep(self._pause_s)
            self._start = EngineStart(self.plan)
            try:
                return await self._bring_up()
            except (RunError, Failure, OSError) as error:
                log.error("%s: %s", self.plan.title, error)

    async def _bring_up(self) -> EngineProcess:
        process = await self._start.run()
        try:
            await self._up(self._start.url)
        except Failure:
            await process.stop()
            raise
        self._failure_reason = ""
        self.is_up = True
        return process

    async def _wait_for_death(self, process: EngineProcess) -> str:
        """Wait until the engine dies and return a description of how it died."""
        while not process.ended.done():
            await asyncio.wait([process.ended], timeout=HEALTH_S)
            if not process.ended.done() and (
                failure_cause := self._failure_reason or await self._start.failure_cause()
            ):
                return failure_cause
        return ending(process.ended.result())

    def _close(self) -> None:
        if self.is_up:
            self.is_up = False
            self._start.phase = "cleaning up after an engine that died"
            self._down(self._start.url)
