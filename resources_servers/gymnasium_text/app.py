"""Plays Gymnasium environments whose observations and actions have a text form."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.records.verdict_fields import VerdictField
from rollyard.resources_servers.base import (
    BadTask,
    Environment,
    InvalidToolCall,
    ToolResult,
    Turn,
    Verdict,
    Verification,
    serve,
    tool,
)
from rollyard.resources_servers.gymnasium_text.actions import Actions, InvalidAction, action_in, names_of
from rollyard.resources_servers.gymnasium_text.game import Gym, GymnasiumSettings, observation_text, open_gym


class GymnasiumText(Environment[GymnasiumSettings]):
    """One episode of a Gymnasium environment. The reward is its return, the sum of the steps' rewards."""

    verdict_fields = (
        VerdictField(path="gym_steps", role="outcome", label="steps"),
        VerdictField(path="gym_terminated", role="outcome", label="terminated"),
        VerdictField(path="gym_truncated", role="limit", label="truncated"),
    )
    shared: ClassVar[Gym]

    def __init__(self, task: Mapping[str, Any], settings: GymnasiumSettings) -> None:
        """Check the row's env_id, kwargs, seed and options. Raises BadTask."""
        super().__init__(task, settings)
        self._env_id = task.get("env_id") or settings.env_id
        if not isinstance(self._env_id, str):
            raise BadTask(f"env_id is {self._env_id!r:.100}; set it in the row or in the server's settings")
        # The arguments of one environment are not valid for another one.
        shared = settings.kwargs if self._env_id == settings.env_id else {}
        self._kwargs = {**shared, **_object_in(task, "kwargs")}
        self._options = _object_in(task, "options")
        self._seed = task.get("seed")
        if not isinstance(self._seed, int) or isinstance(self._seed, bool) or self._seed < 0:
            raise BadTask(
                f"seed is {self._seed!r:.100}; expected a non-negative integer, so that the task is repeatable"
            )
        self._env: Any = None
        self._actions: Actions
        self._text = ""
        self._return = 0.0
        self._steps = 0
        self._terminated = self._truncated = False

    @classmethod
    @contextlib.asynccontextmanager
    async def lifespan(cls, settings: GymnasiumSettings) -> AsyncIterator[Gym]:
        """Import Gymnasium and create the environment once, to check the settings."""
        gym = await asyncio.to_thread(open_gym, settings)
        try:
            yield gym
        finally:
            gym.threads.shutdown(wait=False, cancel_futures=True)

    async def seed(self) -> list[Json]:
        await self.shared.run(f"reset of {self._env_id}", self._open)
        return [{"role": "user", "content": self._opening}]

    @tool
    async def act(self, action: str | int) -> ToolResult:
        """Take one action in the environment and return the next observation."""
        try:
            text, _ = await self._step(str(action))
        except InvalidAction as error:
            raise InvalidToolCall(str(error)) from error
        return ToolResult(text, done=self._over)

    async def reset(self) -> tuple[str, Json]:
        """Turn-based mode: the action is the last `<action>...</action>` of a message, or the complete message."""
        return f"{self._opening}\nWrite your action as <action>...</action>.", {}

    async def turn(self, text: str) -> Turn:
        """Take one action; a message without a valid one costs nothing and returns a hint."""
        try:
            observation, reward = await self._step(action_in(text))
        except InvalidAction as error:
            return Turn(f"{error}\n{self._text}")
        return Turn(observation, reward, self._terminated, self._truncated)

    async def verify(self, response: Verification) -> Verdict:
        """Return the episode's return."""
        fields = {"gym_steps": self._steps, "gym_terminated": self._terminated, "gym_truncated": self._truncated}
        if (least := self.settings.success_return) is not None:
            return Verdict(reward=self._return, success=self._return >= least, **fields)
        return Verdict(reward=self._return, **fields)

    async def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            await self.shared.run(f"close of {self._env_id}", env.close)

    @property
    def _over(self) -> bool:
        return self._terminated or self._truncated

    @property
    def _opening(self) -> str:
        return f"{self._text}\n\nActions: {self._actions.expected}."

    def _open(self) -> None:
        try:
            self._env = env = self.shared.make(str(self._env_id), self._kwargs)
            observation, _ = env.reset(seed=self._seed, options=self._options or None)
        except (self.shared.gymnasium.error.Error, TypeError, ValueError, KeyError, ImportError) as error:
            found = f"{self._env_id} with kwargs {self._kwargs!r:.200} and options {self._options!r:.200}"
            raise BadTask(f"{found} cannot be created: {type(error).__name__}: {error}") from error
        self._actions = Actions(env.action_space, names_of(str(self._env_id), self.settings.action_names))
        self._text = observation_text(env, observation)

    async def _step(self, text: str) -> tuple[str, float]:
        """Return the next observation and the step's reward. Raises InvalidAction, and Failure for a bad reward."""
        if self._over:
            return "The episode is over.", 0.0
        action = self._actions.parse(text)
        self._steps += 1
        reward = await self.shared.run(f"step of {self._env_id}", lambda: self._take(action))
        self._return += reward
        return self._text, reward

    def _take(self, action: Any) -> float:
        try:
            observation, reward, terminated, truncated, _ = self._env.step(action)
        except self.shared.gymnasium.error.InvalidAction as error:
            raise InvalidAction(str(error)) from error
        self._text = observation_text(self._env, observation)
        self._terminated, self._truncated = bool(terminated), bool(truncated)
        number = float(reward)
        if not math.isfinite(number):
            raise Failure(FailureKind.MALFORMED_ANSWER, f"step of {self._env_id} returned the reward {reward!r}")
        return number


def _object_in(task: Mapping[str, Any], name: str) -> Json:
    found = task.get(name, {})
    if not isinstance(found, dict):
        raise BadTask(f"{name} is {found!r:.100}; expected an object")
    return found


server = serve(GymnasiumText)
