"""Plays the tasksets of the package verifiers: their prompts, tools, state and rewards."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.optional import load
from rollyard.records.types import Json
from rollyard.records.verdict_fields import VerdictField
from rollyard.resources_servers.base import BadTask, InvalidToolCall, Verdict, Verification, serve
from rollyard.resources_servers.tools import EpisodeTools
from rollyard.resources_servers.verifiers_environment.taskset import (
    FEATURE,
    LoadedTaskset,
    OpenToolset,
    VerifiersSettings,
    message_nodes,
    open_taskset,
    prompt_items,
    toolset_of,
)


class VerifiersEnvironment(EpisodeTools[VerifiersSettings]):
    """One rollout of a task. The row's `task_index` is the task's number in the taskset, counted from 0."""

    verdict_fields = (
        VerdictField(path="reward_components", role="component"),
        VerdictField(path="metrics", role="reason"),
        VerdictField(path="scoring_timed_out", role="limit"),
    )
    shared: ClassVar[LoadedTaskset]

    def __init__(self, task: Mapping[str, Any], settings: VerifiersSettings) -> None:
        """Find the task. Raises BadTask if the taskset has no such task, or if the task has no prompt."""
        super().__init__(task, settings)
        tasks, index = self.shared.tasks, task.get("task_index")
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(tasks):
            found = f"task_index is {index!r:.100}; taskset {settings.taskset!r} has {len(tasks)} tasks"
            raise BadTask(f"{found}, counted from 0 (max_tasks: {settings.max_tasks})")
        self._task = tasks[index]
        if self._task.data.prompt is None:
            raise BadTask(
                f"task {index} has no prompt: a simulated user opens its conversation, which is not supported"
            )
        self._runtime: Any = None
        self._toolsets: list[OpenToolset] = []
        self._trace = self._new_trace()

    @classmethod
    @contextlib.asynccontextmanager
    async def lifespan(cls, settings: VerifiersSettings) -> AsyncIterator[LoadedTaskset]:
        """Load the taskset."""
        loaded = await open_taskset(settings)
        try:
            yield loaded
        finally:
            for toolset in loaded.shared_toolsets:
                await toolset.close()

    async def seed(self) -> list[Json]:
        """Set up the task and its tools; return its prompt."""
        verifiers, task = self.shared.verifiers, self._task
        runtimes = load("verifiers.v1.runtimes", "verifiers", FEATURE)
        try:
            async with asyncio.timeout(self.settings.setup_timeout_s):
                self._runtime = runtimes.make_runtime(verifiers.SubprocessConfig(), name=self._trace.id)
                self._runtime.env = dict(task.runtime_env())
                await self._runtime.start()
                await self._hook(task.setup)
                for toolset in task.toolsets(task.config):
                    self._toolsets.append(await toolset_of(toolset, task.data))
        except TimeoutError as error:
            detail = f"the setup of task {task.data.idx} took longer than {self.settings.setup_timeout_s:g} s"
            raise Failure(FailureKind.TIMEOUT, f"{detail} (setup_timeout_s)") from error
        return prompt_items(self._trace.task.data)

    def episode_tools(self) -> list[Json]:
        """Return the tools of the task and of the taskset."""
        return [tool for toolset in self._all_toolsets for tool in toolset.tools]

    async def call_episode_tool(self, name: str, arguments: Json) -> Any:
        """Call a tool with the episode's state."""
        for toolset in self._all_toolsets:
            if name in toolset.names:
                return await toolset.call(name, arguments, self._trace.state)
        known = ", ".join(name for toolset in self._all_toolsets for name in toolset.names)
        raise InvalidToolCall(f"There is no tool {name[:200]!r}. Tools: {known or 'none'}.")

    async def verify(self, response: Verification) -> Verdict:
        """Return the weighted sum of the task's rewards, each as a component, and its metrics."""
        output = response.response.get("output")
        items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
        trace = self._trace
        trace.nodes = message_nodes(self.shared.verifiers, prompt_items(trace.task.data), items)
        trace.root_reply = response.text
        trace.stop("agent_completed")
        trace.ok = True
        try:
            async with asyncio.timeout(self.settings.scoring_timeout_s):
                await self._hook(self._task.finalize)
                await self._task.score(trace, self._runtime)
        except TimeoutError:
            return Verdict(reward=0.0, scoring_timed_out=True)
        components = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None and math.isfinite(value)}
        return Verdict(reward=trace.reward, reward_components=components, metrics=metrics)

    async def close(self) -> None:
        """Close the tools and the working folder."""
        for toolset in self._toolsets:
            await toolset.close()
        if self._runtime is not None:
            await self._runtime.stop()

    @property
    def _all_toolsets(self) -> list[OpenToolset]:
        return [*self._toolsets, *self.shared.shared_toolsets]

    def _new_trace(self) -> Any:
        verifiers, task = self.shared.verifiers, self._task
        states = load("verifiers.v1.state", "verifiers", FEATURE)
        about = verifiers.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        state = states.state_cls(type(task))()
        return verifiers.Trace(task=about, state=state, agent=verifiers.AgentInfo(config=verifiers.AgentConfig()))

    async def _hook(self, hook: Any) -> None:
        decorators = load("verifiers.v1.utils.decorators", "verifiers", FEATURE)
        await decorators.invoke(hook, {"trace": self._trace, "runtime": self._runtime, "task": self._task.data})


server = serve(VerifiersEnvironment)
