"""Plays the tasksets of the package verifiers: their prompts, tools, state and rewards."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.optional import load
from rollyard.records.rewards import VerdictField
from rollyard.records.types import Json
from rollyard.resources_servers.base import BadTask, EnvironmentSettings, InvalidToolCall, Verdict, Verification, serve
from rollyard.resources_servers.tools import EpisodeTools


class VerifiersSettings(EnvironmentSettings):
    taskset: str
    """Id of the taskset, as for `vf-eval`: an installed module that exports a Taskset."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """The taskset's config, without its id; `task` in it is the config of its tasks."""
    max_tasks: int = Field(default=10_000, ge=1)
    """At most this many tasks are loaded; an infinite taskset needs it."""
    setup_timeout_s: float = Field(default=60.0, gt=0)
    """How long a task's setup may take, with that of its tools. Exceeding it is a failure."""
    scoring_timeout_s: float = Field(default=60.0, gt=0)
    """How long the rewards may take. An answer that takes longer gets a reward of 0, and no second try."""


FEATURE = "the environment verifiers_environment"


@dataclass(frozen=True)
class LoadedTaskset:
    verifiers: Any
    tasks: Sequence[Any]
    shared_toolsets: Sequence[OpenToolset]


async def open_taskset(settings: VerifiersSettings) -> LoadedTaskset:
    verifiers = load("verifiers.v1", "verifiers", FEATURE)
    loaders = load("verifiers.v1.utils.loaders", "verifiers", FEATURE)
    try:
        config = loaders.taskset_config_type(settings.taskset).model_validate(
            {**settings.arguments, "id": settings.taskset}
        )
        program = loaders.environment_class(settings.taskset)
        taskset = loaders.load_taskset(config)
        tasks = list(itertools.islice(taskset, settings.max_tasks))
        shared = list(type(taskset).toolsets(config))
    except Exception as error:  # the taskset's code may raise anything
        found = f"taskset {settings.taskset!r} with arguments {settings.arguments!r:.200}"
        raise OperatorError(f"{found} cannot be loaded: {type(error).__name__}: {error}") from error
    if program is not verifiers.SingleAgentEnv:
        raise OperatorError(
            f"taskset {settings.taskset!r} has a program of its own, {program.__name__}, which calls the model itself, "
            "for several agents or a simulated user. Only tasksets for one agent can be played here; use vf-eval"
        )
    if any(task.NEEDS_CONTAINER for task in tasks):
        raise OperatorError(f"taskset {settings.taskset!r} needs containers, which are not supported here; use vf-eval")
    if not tasks:
        raise OperatorError(f"taskset {settings.taskset!r} has no tasks")
    return LoadedTaskset(verifiers, tasks, [await toolset_of(each, None) for each in shared])


def prompt_items(data: Any) -> list[Json]:
    items: list[Json] = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*items, {"role": "user", "content": data.prompt}]
    for message in data.prompt or []:
        if message.role in ("system", "user", "assistant"):
            items.append({"role": message.role, "content": _content(message)})
    return items


def message_nodes(verifiers: Any, prompt: Sequence[Json], output: Iterable[Json]) -> list[Any]:
    """Return the nodes of a trace: the prompt, then the episode, in which the model's messages are `sampled`."""
    messages: list[tuple[Any, bool]] = []
    for item in prompt:
        kind = {"system": verifiers.SystemMessage, "assistant": verifiers.AssistantMessage}
        made = kind.get(item["role"], verifiers.UserMessage)
        messages.append((made(content=_text(item["content"])), False))
    texts: list[str] = []
    calls: list[Any] = []

    def end_turn() -> None:
        if texts or calls:
            content = "".join(texts) or None
            messages.append((verifiers.AssistantMessage(content=content, tool_calls=list(calls) or None), True))
            texts.clear()
            calls.clear()

    for item in output:
        kind_of_item = item.get("type", "message")
        if kind_of_item == "function_call":
            call = {"id": item["call_id"], "name": str(item.get("name")), "arguments": str(item.get("arguments"))}
            calls.append(verifiers.ToolCall(**call))
        elif kind_of_item == "function_call_output":
            end_turn()
            content = _text(item.get("output"))
            messages.append((verifiers.ToolMessage(tool_call_id=item["call_id"], content=content), False))
        elif kind_of_item == "message" and item.get("role", "assistant") == "assistant":
            texts.append(_text(item.get("content")))
        elif kind_of_item == "message":
            end_turn()
            messages.append((verifiers.UserMessage(content=_text(item.get("content"))), False))
    end_turn()
    return [
        verifiers.MessageNode(parent=number - 1 if number else None, message=message, sampled=sampled)
        for number, (message, sampled) in enumerate(messages)
    ]


def _content(message: Any) -> str | list[Json]:
    if isinstance(message.content, str):
        return message.content
    parts: list[Json] = []
    for part in message.content or []:
        if part.type == "text":
            parts.append({"type": "input_text", "text": part.text})
        else:
            parts.append({"type": "input_image", "image_url": part.image_url.url, "detail": "auto"})
    return parts


def _text(content: object) -> str:
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)


_STATE: ContextVar[Any] = ContextVar("verifiers_state")
"""The state of the episode whose tool is running."""


@dataclass(frozen=True)
class OpenToolset:
    """A toolset that is set up, and its tools by the names under which the model calls them. verifiers itself starts a
    process per toolset, and sends it the rollout's state over HTTP. Here, the toolset reads the state of the episode
    that calls it.
    """

    toolset: Any
    server: Any
    names: dict[str, str]
    """Advertised name -> the tool's own name."""
    tools: Sequence[Json]

    async def call(self, name: str, arguments: Json, state: Any) -> str:
        """Call a tool and return its text. Raises InvalidToolCall if it fails, as the error is for the model."""
        errors = load("mcp.server.mcpserver.exceptions", "verifiers", "a toolset")
        token = _STATE.set(state)
        try:
            result = await self.server.call_tool(self.names[name], arguments)
        except errors.ToolError as error:
            raise InvalidToolCall(str(error)) from error
        finally:
            _STATE.reset(token)
        text = "\n".join(part.text for part in result.content if getattr(part, "type", "") == "text")
        if result.is_error:
            raise InvalidToolCall(text)
        return text

    async def close(self) -> None:
        await self.toolset._exit_stack.aclose()


async def toolset_of(toolset: Any, data: Any) -> OpenToolset:
    """Set up a toolset for the data of a task; None for a toolset that all tasks share."""
    mcp = load("mcp.server.mcpserver", "verifiers", "a toolset")

    async def read_state() -> Any:
        return _STATE.get()

    async def write_state(before: bytes) -> None: ...  # the tool has changed the episode's own state object

    # verifiers' channel to the process of the rollout; here it is this process.
    toolset._pull_state, toolset._push_state = read_state, write_state
    await toolset.setup()
    if data is not None:
        await toolset.setup_task(data)
    prefix = f"{toolset.server_name}_" if toolset.server_name else ""
    server = mcp.MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    listed = await server.list_tools()
    tools: list[Json] = []
    for found in listed:
        about = {"name": prefix + found.name, "description": found.description or found.name}
        tools.append({"type": "function", **about, "parameters": found.input_schema, "strict": False})
    return OpenToolset(toolset, server, {prefix + found.name: found.name for found in listed}, tools)


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
            reason = f"task {index} has no prompt: a simulated user opens its conversation, which is not supported"
            raise BadTask(reason)
        self._runtime: Any = None
        self._toolsets: list[OpenToolset] = []
        self._trace = self._new_trace()

    @classmethod
    @contextlib.asynccontextmanager
    async def lifespan(cls, settings: VerifiersSettings) -> AsyncIterator[LoadedTaskset]:
        loaded = await open_taskset(settings)
        try:
            yield loaded
        finally:
            for toolset in loaded.shared_toolsets:
                await toolset.close()

    async def seed(self) -> list[Json]:
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
        return [tool for toolset in self._all_toolsets for tool in toolset.tools]

    async def call_episode_tool(self, name: str, arguments: Json) -> Any:
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
