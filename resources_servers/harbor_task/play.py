"""A task that is being played: boxes for its places, its steps one after another, and their rewards.

MCP servers of a task with `transport = "stdio"` run in its box and speak over their standard input and output.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json, items, mapping
from rollyard.resources_servers.base import InvalidToolCall
from rollyard.resources_servers.harbor_task.dockerfile import UnsupportedTask
from rollyard.resources_servers.harbor_task.harbor_box import VERIFIER_LOGS, TaskBox, TestReward
from rollyard.resources_servers.harbor_task.task_folder import (
    HarborSettings,
    McpServer,
    Place,
    TaskFolder,
    TaskSet,
    TaskStep,
    load_tasks,
)
from rollyard.services.sandbox.backends import backend_named
from rollyard.services.sandbox.box import BoxBackend, BoxDied, BoxEntry, BoxRefused, Need, plan_for
from rollyard.services.sandbox.container_box import ContainerBoxes

_LOGS = ("/logs/agent", VERIFIER_LOGS, "/logs/artifacts")


@dataclass(frozen=True)
class Workshop:
    """What the episodes of a server share."""

    tasks: TaskSet
    settings: HarborSettings
    backend: BoxBackend
    slots: asyncio.Semaphore
    built: dict[str, asyncio.Lock]
    """Images that are being built, or have been."""

    async def box(self, task: TaskFolder, place: Place, *, endpoint: bool = False) -> TaskBox:
        """Start a box of a place, with what its Dockerfile creates. Raises UnsupportedTask if an instruction fails."""
        limits, config = self.settings.limits, task.config
        less = {
            "memory_mb": min(limits.memory_mb, max(config.memory_mb or limits.memory_mb, 64)),
            "storage_mb": min(limits.storage_mb, config.storage_mb or limits.storage_mb),
        }
        image, workdir, env = "", "/", dict(place.config.env)
        if place.build is None:
            image = await self._image(task, place)
            own = await _images(self.backend).workdir_of(image)
            workdir = place.config.workdir or own
        else:
            workdir = place.build.workdir
            paths = [str(path / "bin") for path in self.settings.host_paths if (path / "bin").is_dir()]
            env = {**place.build.env, "PATH": ":".join([*paths, place.build.env["PATH"]])}
        plan = plan_for(
            limits.model_copy(update=less),
            visible=[str(path) for path in self.settings.host_paths],
            folders=[*_LOGS, *(place.build.folders if place.build else [workdir])],
            image=image,
            network=place.network,
            endpoint=endpoint,
        )
        try:
            started = await self.backend.start(plan)
        except BoxRefused as error:
            raise UnsupportedTask(str(error)) from error
        box = TaskBox(started, workdir, env, self.slots)
        try:
            if place.build is not None:
                limit_s = min(place.config.build_timeout_sec, self.settings.max_build_s)
                await box.execute(place.build, place.context, limit_s)
        except BaseException:
            await box.close()
            raise
        return box

    async def _image(self, task: TaskFolder, place: Place) -> str:
        """Return the name of the image, after building it if need be. It is built once for each version of a task.

        Raises OperatorError if the engine is to blame, or may be: it does not answer, or took too long.
        """
        if place.image is not None:
            return place.image
        engine = _images(self.backend)
        context = place.context.relative_to(task.path).as_posix()
        tag = f"rollyard-task:{task.digest[:24]}-{hashlib.sha256(context.encode()).hexdigest()[:12]}"
        limit_s = min(place.config.build_timeout_sec, self.settings.max_build_s)
        async with self.built.setdefault(tag, asyncio.Lock()):
            if await engine.has(tag):
                return tag
            started = time.monotonic()
            try:
                await engine.build(str(place.context), tag, limit_s)
            except BoxRefused as error:
                took_s = time.monotonic() - started
                if took_s >= limit_s:
                    raise OperatorError(
                        f"{context}/Dockerfile was not built within {limit_s:g} s (max_build_s, or "
                        f"environment.build_timeout_sec): {error}"
                    ) from error
                raise UnsupportedTask(f"{context}/Dockerfile: {error}") from error
        return tag


def _images(backend: BoxBackend) -> ContainerBoxes:
    assert isinstance(backend, ContainerBoxes), "only its boxes have images"
    return backend


async def workshop(settings: HarborSettings) -> Workshop:
    """Find boxes that work on this host, and load the tasks. Raises OperatorError."""
    backend = await backend_named(settings.boxes, settings.container_network or "none")
    if Need.PATHS in backend.lacks:
        raise OperatorError(
            f"boxes: {settings.boxes}: {backend.lacks[Need.PATHS]}; expected boxes: namespaces, docker or podman"
        )
    tasks = await asyncio.to_thread(load_tasks, settings, backend.lacks)
    slots = asyncio.Semaphore(settings.slots or 2 * len(os.sched_getaffinity(0)))
    return Workshop(tasks, settings, backend, slots, {})


class Play:
    """A task that is being played: its box, and the rewards of the steps so far."""

    def __init__(self, task: TaskFolder, shop: Workshop, box: TaskBox) -> None:
        self.task = task
        self.box = box
        self.rewards: list[TestReward] = []
        self.servers = [ToolServer(box, server) for server in task.config.environment.mcp_servers]
        self.stopped = ""
        """Why there is no next step, although the task has one."""
        self._is_gated = False
        """Whether that is a `min_reward` of the task, so that the steps after it do not count."""
        self._shop = shop

    @classmethod
    async def start(cls, task: TaskFolder, shop: Workshop, *, endpoint: bool = False) -> Play:
        """Raises UnsupportedTask if the box cannot be built, and other errors if that is not the task's fault."""
        play = cls(task, shop, await shop.box(task, task.place, endpoint=endpoint))
        try:
            problem = await play.box.unhealthy(task.config.environment.healthcheck)
            if problem := problem or await play.box.prepare(task.steps[0]):
                raise Failure(FailureKind.SERVER_ERROR, problem)  # a slow machine is its usual reason
            await play.start_servers()
        except BoxRefused as error:
            await play.box.close()
            raise UnsupportedTask(str(error)) from error
        except BaseException:
            await play.box.close()
            raise
        return play

    async def start_servers(self) -> None:
        """Raises UnsupportedTask if one does not answer."""
        for server in self.servers:
            await server.start()

    @property
    def step(self) -> TaskStep:
        return self.task.steps[min(len(self.rewards), len(self.task.steps) - 1)]

    @property
    def is_over(self) -> bool:
        return len(self.rewards) >= len(self.task.steps) or bool(self.stopped)

    async def finish_step(self) -> None:
        """Run the tests of this step and prepare the next one. What the model broke gives the reward 0."""
        step = self.step
        try:
            found = await self._tested(step)
            self.rewards.append(found)
            if unmet := _unmet(step.min_reward, found):
                self.stopped, self._is_gated = f"the step {step.name} has {unmet}", True
            elif not self.is_over:
                self.stopped = await self.box.prepare(self.step)
                await self.start_servers()
        except (BoxDied, BoxRefused, UnsupportedTask) as error:
            if len(self.rewards) < len(self.task.steps) and step is self.step:
                self.rewards.append(TestReward(0.0, problem=f"the tests cannot run: {error}"))
            self.stopped = f"the box is broken: {error}"
        except OperatorError as error:
            raise Failure(FailureKind.SERVER_ERROR, str(error)) from error

    async def _tested(self, step: TaskStep) -> TestReward:
        settings = self._shop.settings
        if not settings.keep_processes:
            await self.box.box.kill_processes()
        if step.separate is None:
            return await self.box.test(step, settings)
        artifacts = await self.box.artifacts(step)
        try:
            other = await self._shop.box(self.task, step.separate)
        except (UnsupportedTask, OperatorError, BoxDied, BoxRefused) as error:
            # The model cannot have caused it, so it is no reward.
            raise Failure(
                FailureKind.SERVER_ERROR, f"the box of the separate verifier cannot start: {error}"
            ) from error
        try:
            await other.box.put(artifacts)
            return await other.test(step, settings, has_tests=step.separate.has_tests)
        except BoxDied as error:  # BoxRefused may be about the model's files, and another attempt a second try
            raise Failure(FailureKind.SERVER_ERROR, f"the box of the separate verifier: {error}") from error
        finally:
            await other.close()

    def reward(self) -> TestReward:
        """Return the reward of the task. A step that the model has not reached counts 0, except after `min_reward`."""
        if len(self.task.steps) == 1:
            return self.rewards[0]
        values = [found.reward for found in self.rewards]
        if not self._is_gated:
            values += [0.0] * (len(self.task.steps) - len(values))
        last = self.task.config.multi_step_reward_strategy == "final"
        named = {step.name: value for step, value in zip(self.task.steps, values, strict=False)}
        problems = [
            f"{step.name}: {one.problem}"
            for step, one in zip(self.task.steps, self.rewards, strict=False)
            if one.problem
        ]
        return TestReward(
            values[-1] if last else sum(values) / len(values),
            named,
            problem="; ".join([*problems, *filter(None, [self.stopped])]),
            output="\n".join(
                f"--- {step.name}\n{one.output}" for step, one in zip(self.task.steps, self.rewards, strict=False)
            ),
        )


def _unmet(least: float | dict[str, float] | None, found: TestReward) -> str:
    """Return which reward is less than the least that the next step requires; empty if none is."""
    if least is None:
        return ""
    rewards = found.rewards or {"reward": found.reward}
    for name, value in (least if isinstance(least, dict) else {"reward": least}).items():
        if (got := rewards.get(name)) is None or got < value:
            return f"the reward {name} = {got}, and its min_reward is {value:g}"
    return ""


_VERSION = "2025-06-18"
_START_S = 60.0
# Opened for both directions, a pipe neither blocks nor ends when the process on its other side does.
_START = 'mkdir -p "$0" && cd "$0" && rm -f in out && mkfifo in out && exec 3<>in 4<>out && { "$@" <&3 >&4 2>errors & }'
_SEND = 'cd "$0" && cat message >in'
_READ = 'cd "$0" && exec 3<>out && IFS= read -r -t "$1" line <&3 && printf "%s" "$line"'


class ToolServer:
    def __init__(self, box: TaskBox, server: McpServer) -> None:
        self.name = server.name
        self.tools: list[Json] = []
        """As function tools of the Responses API."""
        self._box = box
        self._command: Sequence[str] = (server.command or "", *server.args)
        self._folder = f"/tmp/.mcp/{server.name.replace('/', '_')}"
        self._number = 0

    async def start(self) -> None:
        """Raises UnsupportedTask if the server does not answer."""
        try:
            await self._box.run(("/bin/bash", "-c", _START, self._folder, *self._command), _START_S)
            about = {
                "protocolVersion": _VERSION,
                "capabilities": {},
                "clientInfo": {"name": "rollyard", "version": "1"},
            }
            await self._ask("initialize", about, _START_S)
            await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            found = items((await self._ask("tools/list", {}, _START_S)).get("tools"))
        except InvalidToolCall as error:
            raise UnsupportedTask(f"environment.mcp_servers: {self.name}: {error}") from error
        self.tools = [
            {
                "type": "function",
                "name": str(each.get("name")),
                "description": str(each.get("description") or ""),
                "parameters": mapping(each.get("inputSchema")) or {"type": "object", "properties": {}},
                "strict": False,
            }
            for each in map(mapping, found)
        ]

    async def call(self, name: str, arguments: Json, limit_s: float) -> str:
        """Return the text of the result. Raises InvalidToolCall, for the model, if there is none."""
        result = await self._ask("tools/call", {"name": name, "arguments": arguments}, limit_s)
        parts = [mapping(part) for part in items(result.get("content"))]
        texts = [str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in parts]
        return ("Error: " if result.get("isError") else "") + "\n".join(texts)

    async def _ask(self, method: str, params: Json, limit_s: float) -> Json:
        self._number += 1
        deadline = time.monotonic() + limit_s
        await self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        while (left_s := deadline - time.monotonic()) > 0:
            read = ("/bin/bash", "-c", _READ, self._folder, f"{left_s:.3f}")
            found = await self._box.run(read, left_s + 5.0)
            if found.exit_code != 0:
                break
            try:
                answer: Any = orjson.loads(found.output)
            except ValueError as error:
                raise InvalidToolCall(f"the server's answer is too long, or not JSON: {found.output[:200]}") from error
            if mapping(answer).get("id") == self._number:  # others are notifications
                if refusal := mapping(mapping(answer).get("error")):
                    raise InvalidToolCall(str(refusal.get("message")))
                return mapping(mapping(answer).get("result"))
        printed = await self._box.run(("tail", "-c", "500", f"{self._folder}/errors"), 10.0)
        raise InvalidToolCall(f"the server did not answer {method} within {limit_s:g} s: {printed.output.strip()}")

    async def _send(self, message: Json) -> None:
        await self._box.box.put(
            [BoxEntry(path=f"{self._folder}/message", kind="file", data=orjson.dumps(message) + b"\n", mode=0o644)]
        )
        sent = await self._box.run(("/bin/bash", "-c", _SEND, self._folder), 10.0)
        if sent.exit_code != 0:
            raise InvalidToolCall(f"the server cannot be reached: {sent.output.strip()[-200:]}")
