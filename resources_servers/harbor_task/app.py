"""harbor_task: task folders in Harbor's format (terminal-bench 2): a shell for the model, and tests for the reward."""

from __future__ import annotations

import asyncio
import os
import posixpath
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import Field

from rollyard.records.errors import OperatorError
from rollyard.records.rewards import VerdictField
from rollyard.records.types import MAX_REWARD, Json, is_number
from rollyard.resources_servers.base import BadTask, Environment, ToolResult, Verdict, Verification, serve, tool
from rollyard.resources_servers.harbor_task.dockerfile import Copy, UnsupportedTask
from rollyard.resources_servers.harbor_task.task_folder import (
    ENVIRONMENT,
    SOLUTION,
    TESTS,
    HarborSettings,
    TaskFolder,
    TaskSet,
    load_tasks,
)
from rollyard.services.sandbox.backends import backend_named
from rollyard.services.sandbox.box import (
    Box,
    BoxBackend,
    BoxDied,
    BoxEntry,
    BoxRefused,
    CommandResult,
    content,
    plan_for,
)

VERIFIER_LOGS = "/logs/verifier"
_LOGS = ("/logs/agent", VERIFIER_LOGS, "/logs/artifacts")


class TaskBox:
    def __init__(self, task: TaskFolder, settings: HarborSettings, box: Box, slots: asyncio.Semaphore) -> None:
        self._task = task
        self._settings = settings
        self._box = box
        self._slots = slots
        paths = [str(path / "bin") for path in settings.host_paths if (path / "bin").is_dir()]
        self._env = {**task.build.env, "PATH": ":".join([*paths, task.build.env["PATH"]])}

    @classmethod
    async def build(
        cls, task: TaskFolder, settings: HarborSettings, backend: BoxBackend, slots: asyncio.Semaphore
    ) -> TaskBox:
        """Start a box and execute the Dockerfile. Raises UnsupportedTask if an instruction fails."""
        limits, config = settings.limits, task.config
        less = {
            "memory_mb": min(limits.memory_mb, max(config.memory_mb or limits.memory_mb, 64)),
            "storage_mb": min(limits.storage_mb, config.storage_mb or limits.storage_mb),
        }
        plan = plan_for(
            limits.model_copy(update=less),
            visible=[str(path) for path in settings.host_paths],
            folders=[*_LOGS, *task.build.folders],
        )
        box = cls(task, settings, await backend.start(plan), slots)
        try:
            await box._execute_build()
        except BaseException:
            await box.close()
            raise
        return box

    async def run(self, argv: Sequence[str], timeout_s: float, env: dict[str, str] | None = None) -> CommandResult:
        async with self._slots:
            variables = {**self._env, **(env or {})}
            return await self._box.run(argv, cwd=self._task.build.workdir, env=variables, timeout_s=timeout_s)

    async def test(self) -> TestReward:
        """Copy the tests into the box, run them, and read the reward. What the model broke gives the reward 0."""
        try:
            return await self._test()
        except (BoxDied, BoxRefused) as error:
            return TestReward(0.0, problem=f"the tests cannot run: {error}")

    async def solve(self) -> CommandResult:
        if not (self._task.path / SOLUTION / "solve.sh").is_file():
            raise UnsupportedTask("solution/solve.sh is missing")
        await self._box.put(list(tree(self._task.path / SOLUTION, "/solution")))
        limit_s = self._task.config.agent.timeout_sec or self._settings.episode_s
        return await self.run(("/bin/bash", "-c", "bash /solution/solve.sh"), limit_s)

    async def close(self) -> None:
        await self._box.close()

    async def _test(self) -> TestReward:
        if not self._settings.keep_processes:
            await self._box.kill_processes()
        for path in ("/tests", VERIFIER_LOGS):
            await self._box.remove(path)
        files = [BoxEntry(path=VERIFIER_LOGS, kind="folder"), *tree(self._task.path / TESTS, "/tests")]
        files = [one.model_copy(update={"mode": 0o755}) if one.path == "/tests/test.sh" else one for one in files]
        await self._box.put(files)
        verifier = self._task.config.verifier
        limit_s = min(verifier.timeout_sec, self._settings.max_test_s)
        result = await self.run(("/bin/bash", "-c", "/tests/test.sh"), limit_s, verifier.env)
        json_file = await content(self._box, f"{VERIFIER_LOGS}/reward.json", MAX_BYTES)
        text_file = await content(self._box, f"{VERIFIER_LOGS}/reward.txt", MAX_BYTES)
        await self._box.remove("/tests")
        if result.timed_out:
            return TestReward(0.0, problem=f"the tests did not finish within {limit_s:g} s", output=result.output)
        return replace(read_reward(json_file, text_file, self._settings.reward_key), output=result.output)

    async def _execute_build(self) -> None:
        limit_s = min(self._task.config.environment.build_timeout_sec, self._settings.max_build_s)
        deadline = time.monotonic() + limit_s
        for step in self._task.build.steps:
            try:
                if isinstance(step, Copy):
                    probe = await self._box.run(("test", "-d", step.target), env=self._env)
                    context = self._task.path / ENVIRONMENT
                    await self._box.put(await asyncio.to_thread(copied, step, context, probe.exit_code == 0))
                    continue
                async with self._slots:
                    left_s = max(deadline - time.monotonic(), 0.1)
                    result = await self._box.run(step.argv, cwd=step.cwd, env=step.env, timeout_s=left_s)
            except (BoxRefused, BoxDied) as error:
                raise step.instruction.refuse(str(error)) from error
            if result.timed_out:
                raise step.instruction.refuse("it did not finish within environment.build_timeout_sec")
            if result.exit_code != 0:
                reason = f"it failed with exit code {result.exit_code}: {result.output[-500:].strip()}"
                raise step.instruction.refuse(reason)


def tree(source: Path, target: str, mode: int | None = None) -> Iterator[BoxEntry]:
    """Yield a file, or a folder with its content, under the path `target`. `mode` replaces the files' permissions."""
    if source.is_symlink():
        yield BoxEntry(path=target, kind="link", target=str(source.readlink()))
    elif source.is_dir():
        yield BoxEntry(path=target, kind="folder")
        for child in sorted(source.iterdir()):
            yield from tree(child, posixpath.join(target, child.name), mode)
    else:
        own = 0o755 if source.stat().st_mode & 0o100 else 0o644
        yield BoxEntry(path=target, kind="file", data=source.read_bytes(), mode=own if mode is None else mode)


def copied(step: Copy, context: Path, is_folder: bool) -> list[BoxEntry]:
    """Return what a COPY instruction creates. `is_folder`: whether its target exists as a folder. Raises
    UnsupportedTask if a source does not exist in the folder environment/, or leads out of it.
    """
    entries: list[BoxEntry] = []
    for pattern in step.sources:
        found = _matching(context, pattern)
        if not found:
            raise step.instruction.refuse(f"{pattern} does not exist in environment/")
        into_folder = step.into_folder or is_folder or len(found) > 1
        for source in found:
            if source.is_dir() and not source.is_symlink():  # its content is copied, not the folder itself
                entries += tree(source, step.target, step.mode)
            else:
                real = source.resolve()
                target = posixpath.join(step.target, source.name) if into_folder else step.target
                entries += tree(real, target, step.mode)
    return entries


def _matching(context: Path, pattern: str) -> list[Path]:
    relative = posixpath.normpath(pattern.lstrip("/")) if pattern.strip("/") else "."
    if relative == ".":
        return [context]
    if relative.startswith(".."):
        return []
    found = sorted(context.glob(relative)) if any(sign in relative for sign in "*?[") else [context / relative]
    root = context.resolve()
    return [path for path in found if path.exists() and path.resolve().is_relative_to(root)]


MAX_BYTES = 64 * 1024


@dataclass(frozen=True)
class TestReward:
    """The reward of the tests. If they wrote none, it is 0, because the model may have broken them."""

    __test__ = False  # not a class of tests

    reward: float
    rewards: dict[str, float] = field(default_factory=dict)
    """All values of reward.json."""
    problem: str = ""
    """Why there is no reward."""
    output: str = ""
    """What the tests printed."""


def read_reward(json_file: bytes | None, text_file: bytes | None, key: str | None) -> TestReward:
    """Return the reward from the content of reward.json, or else from that of reward.txt (None: no such file)."""
    if json_file is None:
        if text_file is None:
            return TestReward(0.0, problem="the tests wrote no reward")
        try:
            value = float(text_file.decode())
        except ValueError:
            return TestReward(0.0, problem=f"reward.txt is not a number: {text_file[:80]!r}")
        if not is_number(value, MAX_REWARD):
            return TestReward(0.0, problem=f"reward.txt is not a finite number: {text_file[:80]!r}")
        return TestReward(value)
    try:
        found = orjson.loads(json_file)
    except ValueError as error:
        return TestReward(0.0, problem=f"reward.json is not JSON: {error}")
    values = found if isinstance(found, dict) else {"reward": found}
    if not values or not all(is_number(each, MAX_REWARD) for each in values.values()):
        return TestReward(0.0, problem=f"reward.json is not an object of finite numbers: {json_file[:80]!r}")
    rewards = {str(name): float(each) for name, each in values.items()}
    if (key or "reward") in rewards:
        return TestReward(rewards[key or "reward"], rewards)
    if key is not None:
        return TestReward(0.0, rewards, f"reward.json has no key {key!r}; it has {', '.join(rewards)}")
    return TestReward(sum(rewards.values()) / len(rewards), rewards)


_OUTPUT_KEPT = 10_000
"""Characters of the tests' output that the rollout records."""


@dataclass(frozen=True)
class Workshop:
    tasks: TaskSet
    backend: BoxBackend
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
        backend = await backend_named("namespaces")
        yield Workshop(tasks, backend, asyncio.Semaphore(settings.slots or 2 * len(os.sched_getaffinity(0))))

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
        try:
            self._box = await TaskBox.build(self._folder, self.settings, self.shared.backend, self.shared.slots)
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
        text = result.output
        if result.timed_out:
            text += f"\n[stopped after {limit_s:g} s]"
        elif result.exit_code != 0:
            text += f"\n[exit code {result.exit_code}]"
        if self._left_s <= 0:
            return ToolResult(f"{text}\n[the time limit of the task is over]", done=True)
        return text

    async def verify(self, response: Verification) -> Verdict:
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
        if self._box is not None:
            await self._box.close()

    @property
    def _open_box(self) -> TaskBox:
        assert self._box is not None, "seed was not called"
        return self._box


server = serve(HarborTask)
