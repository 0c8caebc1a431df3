# mypy: ignore-errors
# openenv is not installed where mypy runs, so its base classes have no types there.
"""An OpenEnv server as a user of openenv writes it: guess a number."""

from __future__ import annotations

from typing import Any

from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int


class Hint(Observation):
    hint: str = ""


class GuessingEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.secret = 0
        self.steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Hint:
        self.secret, self.steps = (seed or 0) % 10, 0
        return Hint(hint="guess a number from 0 to 9")

    def step(self, action: Guess, timeout_s: float | None = None, **more: Any) -> Hint:
        self.steps += 1
        if action.number > 9:
            raise ValueError("the number must not exceed 9")
        found = action.number == self.secret
        return Hint(hint="right" if found else "wrong", reward=1.0 if found else -0.1, done=found)

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


def guessing_app() -> Any:
    return create_fastapi_app(GuessingEnvironment, Guess, Hint, max_concurrent_envs=50)
