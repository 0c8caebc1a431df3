"""harbor_task: task folders in Harbor's format (terminal-bench 2): a shell for the model, and tests for the reward."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.rewards import VerdictField
from rollyard.records.types import Json
from rollyard.resources_servers.base import (
    BadTask,
    InvalidToolCall,
    ToolResult,
    Verdict,
    Verification,
    serve,
    tool,
)
from rollyard.resources_servers.harbor_task.dockerfile import UnsupportedTask
from rollyard.resources_servers.harbor_task.play import Play, ToolServer, Workshop, workshop
from rollyard.resources_servers.harbor_task.task_folder import HarborSettings
from rollyard.resources_servers.tools import EpisodeTools
from rollyard.services.sandbox.box import BoxDied, BoxRefused
from rollyard.services.sandbox.box_program import BoxProgram, ProgramEnd, run_program

R = TypeVar("R")

FINISH_STEP: Json = {
    "type": "function",
    "name": "finish_step",
    "description": "Finish this step of the task: it is graded as it is now. Returns the instruction of the next step.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    "strict": False,
}


_OUTPUT_KEPT = 10_000
"""Characters of the tests' output that the rollout records."""


class HarborTask(EpisodeTools[HarborSettings]):
    system_prompt = (
        "You work on a Linux machine through the tool `bash`. Each call starts a new shell in the working directory; "
        "files and background processes stay. Do what the task asks for, check your work, and then answer with a short "
        "message without a tool call."
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
        """Find boxes that work on this host, and load the tasks. Raises OperatorError, also if none can be played."""
        shop = await workshop(settings)
        if not shop.tasks.playable:
            name, reason = next(iter(shop.tasks.refused.items()))
            raise OperatorError(f"none of the {len(shop.tasks.refused)} tasks can be played here; {name}: {reason}")
        yield shop

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
        self._play: Play | None = None
        self._limit_s = 0.0
        """When this step's time is over, on the clock of the box's commands (`TaskBox.ran_s`)."""
        self._died = ""
        self._served: dict[str, tuple[ToolServer, str]] = {}
        """The tools of the task's MCP servers, with their names there."""

    async def seed(self) -> list[Json]:
        try:
            self._play = await Play.start(self._folder, self.shared, endpoint=True)
        except UnsupportedTask as error:
            raise BadTask(f"{self._folder.name} cannot be played here: {error}") from error
        except (OperatorError, BoxDied, BoxRefused) as error:
            raise Failure(FailureKind.SERVER_ERROR, str(error)) from error
        self._limit_s = self._play.box.ran_s + self._step_s
        text = self._folder.instruction
        if len(self._folder.steps) > 1:
            text += f"\n\n(Step 1 of {len(self._folder.steps)}. Call `finish_step` to get the next one.)"
        return [{"role": "user", "content": text}]

    @tool
    async def bash(
        self,
        command: Annotated[str, Field(description="Bash commands to run in the working directory.", min_length=1)],
        timeout_s: Annotated[float | None, Field(gt=0, description="Time limit in seconds.")] = None,
    ) -> str | ToolResult:
        """Run bash commands and return their output, standard error included."""
        if end := self._end:
            return ToolResult(end, done=True)
        asked_s = min(timeout_s or self.settings.command_timeout_s, self.settings.max_command_s)
        limit_s = min(asked_s, self._left_s)
        result = await self._for_model(self._open.box.run(("/bin/bash", "-c", command), limit_s))
        if isinstance(result, ToolResult):
            return result
        text = result.output
        if result.timed_out:
            text += f"\n[stopped after {limit_s:g} s]"
        elif result.exit_code != 0:
            text += f"\n[exit code {result.exit_code}]"
        if self._left_s <= 0:
            return ToolResult(f"{text}\n[the time limit of the task is over]", done=True)
        return text

    def episode_tools(self) -> list[Json]:
        used = {"bash", "finish_step"}
        found = [FINISH_STEP] if len(self._folder.steps) > 1 else []
        for server in self._open.servers:
            for each in server.tools:
                name = each["name"] if each["name"] not in used else f"{server.name}_{each['name']}"
                used.add(name)
                self._served[name] = (server, each["name"])
                found.append({**each, "name": name})
        return found

    async def call_episode_tool(self, name: str, arguments: Json) -> Any:
        play = self._open
        if end := self._end:
            return ToolResult(end, done=True)
        if name in self._served:
            server, original = self._served[name]
            limit_s = min(self.settings.command_timeout_s, self._left_s)
            return await self._for_model(server.call(original, arguments, limit_s))
        if name != "finish_step" or len(self._folder.steps) == 1:
            raise InvalidToolCall(f"There is no tool {name[:200]!r}.")
        if arguments:
            raise InvalidToolCall("Invalid call to finish_step: it has no arguments.")
        await play.finish_step()
        if play.is_over:
            return ToolResult("This was the last step.", done=True)
        self._limit_s = play.box.ran_s + self._step_s
        return f"Step {len(play.rewards) + 1} of {len(self._folder.steps)}:\n\n{play.step.instruction}"

    async def run_program(self, order: BoxProgram) -> ProgramEnd:
        if len(self._folder.steps) > 1:
            raise BadTask(f"{self._folder.name} has several steps, and a program in the box gets one instruction")
        box = self._open.box
        limit_s = min(order.time_limit_s, max(self._left_s, 0.1))
        try:
            return await run_program(box.box, order, box.workdir, {"HOME": "/root", **box.env}, limit_s)
        except BoxRefused as error:
            raise BadTask(str(error)) from error
        except (BoxDied, OperatorError) as error:  # before the program has started
            raise Failure(FailureKind.SERVER_ERROR, str(error)) from error

    async def verify(self, response: Verification) -> Verdict:
        play = self._open
        if not play.is_over:
            await play.finish_step()
        found = play.reward()
        more: Json = {"rewards": found.rewards} if found.rewards else {}
        return Verdict(
            reward=found.reward,
            success=found.reward >= 1.0,
            problem=self._died or found.problem,
            test_output=found.output[-_OUTPUT_KEPT:],
            **more,
        )

    async def close(self) -> None:
        if self._play is not None:
            await self._play.box.close()

    async def _for_model(self, work: Awaitable[R]) -> R | ToolResult:
        """Await what the model does in the box."""
        try:
            return await work
        except BoxDied as error:
            # It ended while it ran the model's command, so another attempt at the episode would be a second try.
            self._died = f"The machine has ended, and its files are lost: {error}"
            return ToolResult(self._died, done=True)
        except BoxRefused as error:
            raise InvalidToolCall(f"The machine could not do this: {error}") from error
        except OperatorError as error:
            raise Failure(FailureKind.SERVER_ERROR, str(error)) from error

    @property
    def _end(self) -> str:
        """Why nothing more can be done in the box; empty if it can."""
        if self._died or self._open.is_over:
            return self._died or "The task is over."
        return "The time limit of the task is over." if self._left_s <= 0 else ""

    @property
    def _left_s(self) -> float:
        return self._limit_s - self._open.box.ran_s

    @property
    def _step_s(self) -> float:
        step = self._folder.steps[0] if self._play is None else self._play.step
        return step.agent_timeout_s or self.settings.episode_s

    @property
    def _open(self) -> Play:
        assert self._play is not None, "seed was not called"
        return self._play


server = serve(HarborTask)
