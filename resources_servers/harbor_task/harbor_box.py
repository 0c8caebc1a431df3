"""The box of a task: its files, its commands, and its tests with their reward."""

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from rollyard.records.types import MAX_REWARD, is_number
from rollyard.resources_servers.harbor_task.dockerfile import Build, Copy, UnsupportedTask
from rollyard.resources_servers.harbor_task.task_folder import (
    SOLUTION,
    WORKDIR,
    HarborSettings,
    HealthcheckSection,
    TaskStep,
)
from rollyard.services.sandbox.box import Box, BoxEntry, BoxRefused, CommandResult, content

VERIFIER_LOGS = "/logs/verifier"
MAX_ARTIFACT_BYTES = 16 << 20
"""Maximum size of one artifact that a separate verifier gets."""
_SETUP_S = 600.0


class TaskBox:
    """The box of a task, and the working directory and variables of its commands."""

    def __init__(self, box: Box, workdir: str, env: Mapping[str, str], slots: asyncio.Semaphore) -> None:
        self.box = box
        self.workdir = workdir
        self.env = env
        self.ran_s = 0.0
        """How long commands have run, without their waiting for a slot."""
        self._slots = slots

    async def run(self, argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> CommandResult:
        async with self._slots:
            variables = {**self.env, **(env or {})}
            started = time.monotonic()
            try:
                return await self.box.run(argv, cwd=self.workdir, env=variables, timeout_s=timeout_s)
            finally:
                self.ran_s += time.monotonic() - started

    async def prepare(self, step: TaskStep) -> str:
        """Copy the files of a step into the working directory, run its setup.sh, and wait until its health check
        succeeds. Return why it does not, or "". Raises UnsupportedTask if setup.sh fails.
        """
        folder = step.folder / WORKDIR
        if step.name and folder.is_dir():
            await self.box.put(list(tree(folder, self.workdir)))
            if (folder / "setup.sh").exists():
                result = await self.run(("/bin/bash", "setup.sh"), _SETUP_S)
                if result.exit_code != 0:
                    raise UnsupportedTask(f"setup.sh of the step {step.name} failed: {result.output[-500:].strip()}")
        return await self.unhealthy(step.healthcheck)

    async def unhealthy(self, check: HealthcheckSection | None) -> str:
        """Wait until a health check succeeds. Return why it does not, or ""."""
        if check is None:
            return ""
        started, failures = time.monotonic(), 0
        while True:
            is_starting = time.monotonic() - started < check.start_period_sec
            result = await self.run(("/bin/bash", "-c", check.command), check.timeout_sec)
            if result.exit_code == 0:
                return ""
            failures += not is_starting
            if failures >= check.retries:
                return f"the health check `{check.command:.200}` failed: {result.output[-500:].strip()}"
            await asyncio.sleep(check.start_interval_sec if is_starting else check.interval_sec)

    async def solve(self, step: TaskStep, limit_s: float) -> CommandResult:
        if not (step.folder / SOLUTION / "solve.sh").is_file():
            raise UnsupportedTask("solution/solve.sh is missing")
        await self.box.remove("/solution")
        await self.box.put(list(tree(step.folder / SOLUTION, "/solution")))
        return await self.run(("/bin/bash", "-c", "bash /solution/solve.sh"), limit_s)

    async def artifacts(self, step: TaskStep) -> list[BoxEntry]:
        """Run the commands that collect what the tests of another box need, and return it."""
        for collect in step.verifier.collect:
            await self.run(("/bin/bash", "-c", collect.command), collect.timeout_sec)
        found: list[BoxEntry] = []
        for path in dict.fromkeys(("/logs/artifacts", *(path.rstrip("/") for path in step.artifacts))):
            found += await self.box.get(path, MAX_ARTIFACT_BYTES) or []
        return found

    async def test(self, step: TaskStep, settings: HarborSettings, *, has_tests: bool = False) -> TestReward:
        """Run the tests, after copying them into the box unless it `has_tests`, and read the reward."""
        limit_s = min(step.verifier.timeout_sec, settings.max_test_s)
        for path in (VERIFIER_LOGS,) if has_tests else ("/tests", VERIFIER_LOGS):
            await self.box.remove(path)
        files = [BoxEntry(path=VERIFIER_LOGS, kind="folder")]
        for folder in () if has_tests else step.tests:
            files += tree(folder, "/tests")
        executable = {"mode": 0o755}
        await self.box.put(
            [one.model_copy(update=executable) if one.path == "/tests/test.sh" else one for one in files]
        )
        result = await self.run(("/bin/bash", "-c", "/tests/test.sh"), limit_s, step.verifier.env)
        if not settings.keep_processes:  # what the tests have run for the model could still replace the reward
            await self.box.kill_processes()
        json_file = await content(self.box, f"{VERIFIER_LOGS}/reward.json", MAX_BYTES)
        text_file = await content(self.box, f"{VERIFIER_LOGS}/reward.txt", MAX_BYTES)
        await self.box.remove("/tests")
        if result.timed_out:
            return TestReward(0.0, problem=f"the tests did not finish within {limit_s:g} s", output=result.output)
        return replace(read_reward(json_file, text_file, settings.reward_key), output=result.output)

    async def close(self) -> None:
        await self.box.close()

    async def execute(self, build: Build, context: Path, limit_s: float) -> None:
        """Do what a Dockerfile does."""
        deadline = time.monotonic() + limit_s
        for step in build.steps:
            try:
                if isinstance(step, Copy):
                    probe = await self.box.run(("test", "-d", step.target), env=self.env)
                    await self.box.put(await asyncio.to_thread(copied, step, context, probe.exit_code == 0))
                    continue
                async with self._slots:
                    left_s = max(deadline - time.monotonic(), 0.1)
                    result = await self.box.run(step.argv, cwd=step.cwd, env=step.env, timeout_s=left_s)
            except BoxRefused as error:
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
