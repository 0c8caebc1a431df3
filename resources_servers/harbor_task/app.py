"""harbor_task: task folders in Harbor's format (terminal-bench 2): a shell for the model, and tests for the reward."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.records.verdict_fields import VerdictField
from rollyard.resources_servers.base import BadTask, Environment, ToolResult, Verdict, Verification, serve, tool
from rollyard.resources_servers.harbor_task.dockerfile import UnsupportedTask
from rollyard.resources_servers.harbor_task.task_box import TaskBox
from rollyard.resources_servers.harbor_task.task_folder import HarborSettings, TaskSet, load_tasks
from rollyard.services.sandbox.shell_box import BoxDied, CommandResult, ShellBox, plan_for

_OUTPUT_KEPT = 10_000
"""Characters of the tests' output that the rollout records."""


@dataclass(frozen=True)
class Workshop:
    """What all episodes share."""

    tasks: TaskSet
    slots: asyncio.Semaphore


class HarborTask(Environment[HarborSettings]):
    system_prompt = (
        "You work on a Linux machine through the tool `bash`. Each call starts a new shell in the working directory; "
        "files and background processes stay. There is no network. Do what the task asks for, check your work, and "
        "then answer with a short message without a tool call."
    )
    verdict_fields = (
        VerdictField(path="problem", role="reason"),
        VerdictField(path="test_output", role="tests"),
        VerdictField(path="rewards", role="component"),
    )
    stateless = False
    shared: ClassVar[Workshop]

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: HarborSettings) -> AsyncIterator[Workshop]:
        """Load the tasks and start a box, to find out whether this host allows one. Raises OperatorError."""
        tasks = await asyncio.to_thread(load_tasks, settings)
        if not tasks.playable:
            name, reason = next(iter(tasks.refused.items()))
            raise OperatorError(f"none of the {len(tasks.refused)} tasks can be played here; {name}: {reason}")
        await (await ShellBox.start(plan_for(settings.limits))).close()
        yield Workshop(tasks, asyncio.Semaphore(settings.slots or 2 * len(os.sched_getaffinity(0))))

    def __init__(self, task: Mapping[str, Any], settings: HarborSettings) -> None:
        """Find the row's task. Raises BadTask if it does not exist, has changed, or cannot be played here."""
        super().__init__(task, settings)
        name, tasks = str(task.get("task")), self.shared.tasks
        if name in tasks.refused:
            raise BadTask(f"{name} cannot be played here: {tasks.refused[name]}")
        if name not in tasks.playable:
            known = ", ".join(list(tasks.playable)[:3])
            raise BadTask(f"the row's `task` is {name!r}; the folder has {known}, ...")
        self._folder = tasks.playable[name]
        if task.get("task_sha256", self._folder.digest) != self._folder.digest:
            raise BadTask(f"the task {name} has changed since the row was written: prepare the rows again")
        self._box: TaskBox | None = None
        self._left_s = self._folder.config.agent.timeout_sec or settings.episode_s
        self._died = ""

    async def seed(self) -> list[Json]:
        """Build the task's box, and return its instruction."""
        try:
            self._box = await TaskBox.build(self._folder, self.settings, self.shared.slots)
        except UnsupportedTask as error:
            raise BadTask(f"{self._folder.name} cannot be played here: {error}") from error
        return [{"role": "user", "content": self._folder.instruction}]

    @tool
    async def bash(
        self,
        command: Annotated[str, Field(description="Bash commands to run in the working directory.", min_length=1)],
        timeout_s: Annotated[float | None, Field(gt=0, description="Time limit in seconds.")] = None,
    ) -> str | ToolResult:
        """Run bash commands and return their output, standard error included."""
        if self._died or self._left_s <= 0:
            return ToolResult(self._died or "The time limit of the task is over.", done=True)
        asked_s = min(timeout_s or self.settings.command_timeout_s, self.settings.max_command_s)
        limit_s = min(asked_s, self._left_s)
        started = time.monotonic()
        try:
            result = await self._open_box.run(("/bin/bash", "-c", command), limit_s)
        except BoxDied as error:
            # It ended while it ran the model's command, so another attempt at the episode would be a second try.
            self._died = f"The machine has ended, and its files are lost: {error}"
            return ToolResult(self._died, done=True)
        self._left_s -= time.monotonic() - started
        text = _shown(result, limit_s)
        if self._left_s <= 0:
            return ToolResult(f"{text}\n[the time limit of the task is over]", done=True)
        return text

    async def verify(self, response: Verification) -> Verdict:
        """Run the task's tests in the box, and return the reward that they wrote."""
        found = await self._open_box.test()
        more: Json = {"rewards": found.rewards} if found.rewards else {}
        return Verdict(
            reward=found.reward,
            success=found.reward >= 1.0,
            problem=self._died or found.problem,
            test_output=found.output[-_OUTPUT_KEPT:],
            **more,
        )

    async def close(self) -> None:
        """End the box."""
        if self._box is not None:
            await self._box.close()

    @property
    def _open_box(self) -> TaskBox:
        assert self._box is not None, "seed was not called"
        return self._box


def _shown(result: CommandResult, limit_s: float) -> str:
    if result.timed_out:
        return f"{result.output}\n[stopped after {limit_s:g} s]"
    return result.output if result.exit_code == 0 else f"{result.output}\n[exit code {result.exit_code}]"


server = serve(HarborTask)
