"""RunningStages: the long-running stages of an attempt, and waiting that notices when one of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rollyard.launchers.evaluation.pipeline.control.control_requests import ControlRequests
from rollyard.records.errors import RunError
from rollyard.services.runtime.programs.program import STOP_S, Program
from rollyard.services.runtime.programs.program_errors import ended_badly

T = TypeVar("T")


class EvaluationEnding(Exception):
    """The user has asked the evaluation to end."""


class RunningStages:
    """Stages that must keep running until the attempt ends; they are stopped in reverse order."""

    def __init__(self, requests: ControlRequests) -> None:
        self.requests = requests
        self._stages: list[Program] = []
        self._monitors: list[asyncio.Task[str]] = []

    def add(self, stage: Program) -> None:
        self._stages.append(stage)

    def monitor(self, work: Coroutine[Any, Any, str]) -> None:
        """Run `work`, which returns why a stage must be considered dead."""
        self._monitors.append(asyncio.create_task(work))

    def failure(self, count: int | None = None) -> str:
        """Return why the attempt cannot continue; empty if all stages are running. `count`: only the first stages."""
        for stage in self._stages[:count]:
            if not stage.running:
                return ended_badly(stage)
        return next((task.result() for task in self._monitors if task.done()), "")

    async def wait(
        self, *others: asyncio.Future[Any], timeout_s: float | None = None, count: int | None = None
    ) -> None:
        """Wait until one of `others` is done, a stage ends, a request arrives, or `timeout_s` has passed."""
        changed = asyncio.create_task(self.requests.changed())
        waited = {*others, *(stage.ended for stage in self._stages[:count]), *self._monitors, changed}
        try:
            await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def until_done(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which starts a stage.

        Raises RunError if an earlier stage ends meanwhile, and EvaluationEnding if the user ends the evaluation.
        """
        earlier = len(self._stages)  # `work` reports the end of the stage that it starts
        task = asyncio.create_task(work)
        try:
            while not task.done():
                if self.requests.ending:
                    raise EvaluationEnding
                await self.wait(task, count=earlier)
                if not task.done() and (why := self.failure(earlier)):
                    raise RunError(why)
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        """Stop all stages, the last one first."""
        for monitor in self._monitors:
            monitor.cancel()
        await asyncio.gather(*self._monitors, return_exceptions=True)
        for stage in reversed(self._stages):
            await stage.stop(1.0 if self.requests.now else STOP_S)
