"""Plays the environments of an OpenEnv server. One episode is one WebSocket connection to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.json_values import is_number
from rollyard.records.types import MAX_REWARD, Json
from rollyard.records.verdict_fields import VerdictField
from rollyard.resources_servers.base import BadTask, InvalidToolCall, ToolResult, Turn, Verdict, Verification, serve
from rollyard.resources_servers.openenv_environment.connection import (
    OpenEnvConnection,
    OpenEnvServer,
    OpenEnvSettings,
    RejectedMessage,
    StepTimeout,
    mcp_tools,
    openenv_server,
)
from rollyard.resources_servers.tools import EpisodeTools
from rollyard.services.responses.response_validity import as_text

_OVER = "The episode is over."


class OpenEnvEnvironment(EpisodeTools[OpenEnvSettings]):
    """One episode on an OpenEnv server. The row's `seed` and `reset` are the arguments of its reset."""

    verdict_fields = (
        VerdictField(path="openenv_steps", role="outcome", label="steps"),
        VerdictField(path="openenv_done", role="outcome", label="done"),
        VerdictField(path="openenv_timed_out", role="limit", label="timed out"),
    )
    shared: ClassVar[OpenEnvServer]

    def __init__(self, task: Mapping[str, Any], settings: OpenEnvSettings) -> None:
        super().__init__(task, settings)
        self._arguments = _reset_arguments(task)
        self._connection = OpenEnvConnection(self.shared.http, self.shared.url, settings)
        self._tools: dict[str, Json] = {}
        self._rewards: list[float] = []
        self._steps = 0
        self._first = ""
        self._done = False
        self._timed_out = False

    @classmethod
    @contextlib.asynccontextmanager
    async def lifespan(cls, settings: OpenEnvSettings) -> AsyncIterator[OpenEnvServer]:
        """Find the server and read its action schema."""
        async with openenv_server(settings) as server:
            yield server

    async def seed(self) -> list[Json]:
        """Connect and reset. The first observation is the model's first message."""
        await self._connection.open()
        try:
            opened = await self._connection.ask("reset", self._arguments)
            if self.shared.actions.is_mcp:
                listed = await self._connection.ask("step", {"type": "list_tools"})
                self._tools = mcp_tools(_observation(listed).get("tools"))
        except RejectedMessage as error:
            if error.code == "VALIDATION_ERROR":
                raise BadTask(f"the OpenEnv server rejects the row's seed or reset: {error}") from error
            raise Failure(FailureKind.SERVER_ERROR, f"the OpenEnv server failed to reset: {error}") from error
        except StepTimeout as error:
            raise Failure(FailureKind.TIMEOUT, f"reset of the OpenEnv server: {error}") from error
        self._first = self._text(opened)
        return [{"role": "user", "content": self._first}] if self._first else []

    def episode_tools(self) -> list[Json]:
        """Return the server's MCP tools, or one tool whose arguments are an action."""
        if self.shared.actions.is_mcp:
            return [{key: value for key, value in tool.items() if key != "original"} for tool in self._tools.values()]
        return [self.shared.actions.tool(self.settings.tool_name)]

    async def call_episode_tool(self, name: str, arguments: Json) -> Any:
        """Take one step."""
        if self.shared.actions.is_mcp:
            if name not in self._tools:
                raise InvalidToolCall(f"There is no tool {name[:200]!r}. Tools: {', '.join(self._tools) or 'none'}.")
            call = {"type": "call_tool", "tool_name": self._tools[name]["original"], "arguments": arguments}
            return await self._step(call)
        if name != self.settings.tool_name:
            raise InvalidToolCall(f"There is no tool {name[:200]!r}. Tools: {self.settings.tool_name}.")
        return await self._step(arguments)

    async def reset(self) -> tuple[str, Json]:
        """Turn-based mode, for environments whose action is a text."""
        self._message_field()
        return self._first, {}

    async def turn(self, text: str) -> Turn:
        """Take one step whose action is the model's message."""
        before = len(self._rewards)
        result = await self._step({self._message_field(): text})
        output = result.output if isinstance(result.output, str) else as_text(result.output)
        return Turn(output, sum(self._rewards[before:]), terminated=result.done)

    async def verify(self, response: Verification) -> Verdict:
        """Return the steps' rewards as the episode's reward."""
        rewards = self._rewards or [0.0]
        reward = sum(rewards) if self.settings.reward == "sum" else rewards[-1]
        fields = {"openenv_steps": self._steps, "openenv_done": self._done, "openenv_timed_out": self._timed_out}
        return Verdict(reward=reward, **fields)

    async def close(self) -> None:
        """Close the connection, which ends the episode on the server."""
        await self._connection.close()

    async def _step(self, action: Json) -> ToolResult:
        if self._done:
            return ToolResult(_OVER, done=True)
        self._steps += 1
        try:
            answer = await self._connection.ask("step", action)
        except RejectedMessage as error:
            raise InvalidToolCall(f"The environment rejects this action: {error}") from error
        except StepTimeout as error:
            if self.settings.timeout == "failure":
                raise Failure(FailureKind.TIMEOUT, f"step of the OpenEnv server: {error}") from error
            self._done = self._timed_out = True
            return ToolResult(f"The action took too long ({error}). {_OVER}", done=True)
        reward, done = answer.get("reward"), answer.get("done")
        if reward is not None:
            self._rewards.append(_number(reward))
        self._done = _flag(done)
        field = self.settings.observation_field
        return ToolResult(self._text(answer) if field else _observation(answer), done=self._done)

    def _text(self, answer: Json) -> str:
        observation = _observation(answer)
        field = self.settings.observation_field
        if field is None:
            return as_text(observation) if observation else ""
        if field not in observation:
            known = ", ".join(observation) or "no fields"
            detail = f"the observation has no {field!r} (observation_field); it has {known}"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail)
        value = observation[field]
        return value if isinstance(value, str) else as_text(value)

    def _message_field(self) -> str:
        field = self.settings.text_field or self.shared.actions.text_field
        if field is None:
            raise BadTask("the action is not a single text: play it with tools, or set text_field")
        return field


def _reset_arguments(task: Mapping[str, Any]) -> Json:
    arguments = task.get("reset", {})
    if not isinstance(arguments, dict):
        raise BadTask(f"reset is {arguments!r:.100}; expected an object with the arguments of the server's reset")
    if (seed := task.get("seed")) is not None:
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise BadTask(f"seed is {seed!r:.100}; expected an integer")
        return {**arguments, "seed": seed}
    return arguments


def _observation(answer: Json) -> Json:
    """Return the observation without metadata and empty fields."""
    observation = answer.get("observation")
    if not isinstance(observation, dict):
        found = f"the OpenEnv server sent the observation {observation!r:.100}"
        raise Failure(FailureKind.MALFORMED_ANSWER, f"{found}; expected an object")
    return {key: value for key, value in observation.items() if key != "metadata" and value is not None}


def _number(reward: object) -> float:
    if isinstance(reward, bool | int | float) and (isinstance(reward, bool) or is_number(reward, MAX_REWARD)):
        return float(reward)
    raise Failure(FailureKind.MALFORMED_ANSWER, f"the OpenEnv server sent the reward {reward!r:.100}")


def _flag(done: object) -> bool:
    """Return whether the episode is over. A wrong type is no "false": the episode would go on after its end."""
    if done is None or isinstance(done, bool):
        return done is True
    raise Failure(FailureKind.MALFORMED_ANSWER, f"the OpenEnv server sent done: {done!r:.100}; expected true or false")


server = serve(OpenEnvEnvironment)
