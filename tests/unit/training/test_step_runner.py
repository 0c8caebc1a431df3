"""While a step is played, engines that lost the weights get them again."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.records.errors import RunError
from rollyard.training.policy_trainer import Save
from rollyard.training.step_runner import play_step
from rollyard.training.update import Batch
from rollyard.training.weight_publisher import PublishedWeights

BATCH = Batch(3, (), {})


class LosingEngines:
    """Rollouts that end once the engines have the weights, which they get at the second look."""

    def __init__(self, error: RunError | None = None) -> None:
        self.error = error
        self.looks = 0
        self._repaired = asyncio.Event()

    async def next_batch(self, step: int) -> Batch | None:
        await self._repaired.wait()
        return BATCH

    async def publish(self, version: str, save: Save) -> PublishedWeights:
        raise AssertionError("the weights did not change")

    async def repair(self) -> PublishedWeights | None:
        self.looks += 1
        if self.error is not None:
            raise self.error
        if self.looks < 2:
            return None
        self._repaired.set()
        return PublishedWeights("step_000002.1", 0.1)


async def test_weights_that_an_engine_lost_are_sent_again_while_the_step_is_played() -> None:
    engines, lines = LosingEngines(), list[str]()
    assert await play_step(engines, engines, 3, lines.append, repair_s=0.01) == BATCH
    [line] = lines
    assert line.endswith(" step_000002.1")


async def test_weights_that_cannot_be_sent_again_end_the_step() -> None:
    engines = LosingEngines(RunError("engines gone"))
    with pytest.raises(RunError, match="engines gone"):
        await play_step(engines, engines, 3, print, repair_s=0.01)
