"""Engine: one replica of vLLM, kept up. Its address changes with every start: no episode outlives its engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from rollyard.responses_api_models.local_vllm_model.engine_process import EngineProcess
from rollyard.responses_api_models.local_vllm_model.startup import EngineStart, StartPlan, ending
from rollyard.services.backoff import Restarts
from rollyard.services.errors import Failure, RunError

log = logging.getLogger(__name__)

HEALTH_S = 0.25
"""How often an engine that is up is asked for its health: calls that meet a dead one try again within a second."""


class Engine:
    """One replica. `up` is told its address when it is ready, `down` when it is no longer.

    `up` may still refuse an engine, by raising Failure: it does not take the policy's weights.
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
        self._ill = ""
        self._keeping: asyncio.Task[None] | None = None

    @property
    def phase(self) -> str:
        """What it is doing; nothing while it is up."""
        return "" if self.is_up else self._start.phase

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._start.url

    def give_up(self, why: str) -> None:
        """Take it for dead: it is ended, and started anew."""
        self._ill = why

    async def start(self) -> None:
        """Bring it up, and keep it up from then on. Raises RunError: why it did not get ready; Failure: of `up`."""
        process = await self._bring_up()
        self._keeping = asyncio.create_task(self._keep(process))

    async def stop(self) -> None:
        """End it; nothing of it is left."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        self._close()
        await self._start.end()

    async def _keep(self, process: EngineProcess) -> None:
        while True:
            since = time.monotonic()
            why = await self._death(process)
            self._close()
            lived_s = time.monotonic() - since
            if lived_s > self._restarts.calm_after_s:
                self._pause_s = 0.0
            title, log_file = self.plan.title, self.plan.log_file
            log.error("%s %s after %.0f s; starting it again; its log: %s", title, why, lived_s, log_file)
            await process.stop()  # its GPU memory is needed
            process = await self._again()

    async def _again(self) -> EngineProcess:
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
        self._ill = ""
        self.is_up = True
        return process

    async def _death(self, process: EngineProcess) -> str:
        """How it died, once it has."""
        while not process.ended.done():
            await asyncio.wait([process.ended], timeout=HEALTH_S)
            if not process.ended.done() and (failure_cause := self._ill or await self._start.failure_cause()):
                return failure_cause
        return ending(process.ended.result())

    def _close(self) -> None:
        if self.is_up:
            self.is_up = False
            self._start.phase = "ending what is left of an engine that died"
            self._down(self._start.url)
