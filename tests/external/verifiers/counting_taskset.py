"""A taskset with tools, state, two rewards and a metric, as a user of verifiers writes it."""
# mypy: ignore-errors
# verifiers is not installed where mypy runs, so its base classes and decorators have no types there.

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf

__all__ = ["CountingTaskset"]


class CountState(vf.State):
    count: int = 0
    prepared: bool = False


class CounterConfig(vf.ToolsetConfig):
    step: int = 1


class Counter(vf.Toolset[CounterConfig, CountState]):
    @vf.tool
    async def add(self, times: int) -> str:
        """Add to the counter."""
        if times < 0:
            raise ValueError("times must not be negative")
        self.state.count += times * self.config.step
        return f"the counter is at {self.state.count}"


class CountData(vf.TaskData):
    target: int


class CountTask(vf.Task[CountData, CountState, vf.TaskConfig]):
    async def setup(self, trace: Any, runtime: Any) -> None:
        trace.state.prepared = True

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return [Counter(CounterConfig(step=2))]

    @vf.reward(weight=2.0)
    async def reached(self, trace: Any) -> float:
        return float(trace.state.count == self.data.target and trace.state.prepared)

    @vf.reward
    async def said(self, trace: Any) -> float:
        if "sleep" in trace.last_reply:
            await asyncio.sleep(60)
        return float(str(self.data.target) in trace.last_reply)

    @vf.metric
    async def turns(self, trace: Any) -> float:
        return float(trace.num_turns)


class CountingConfig(vf.TasksetConfig):
    size: int = 3


class CountingTaskset(vf.Taskset[CountTask, CountingConfig]):
    def load(self) -> Iterable[CountTask]:
        for number in range(self.config.size):
            prompt = f"Bring the counter to {2 * number + 2}."
            yield CountTask(CountData(prompt=prompt, system_prompt="Count.", target=2 * number + 2), self.config.task)
