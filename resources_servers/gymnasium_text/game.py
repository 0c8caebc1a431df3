"""Gymnasium's environments on threads: their methods are synchronous and may take long."""

from __future__ import annotations

import asyncio
import importlib
import re
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import Field

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.optional import load
from rollyard.resources_servers.base import EnvironmentSettings
from rollyard.resources_servers.gymnasium_text.actions import Actions, names_of

T = TypeVar("T")


@dataclass(frozen=True)
class Gym:
    gymnasium: Any
    threads: ThreadPoolExecutor
    settings: GymnasiumSettings

    def make(self, env_id: str, kwargs: Mapping[str, Any]) -> Any:
        """Create an environment that draws itself as text, if it can. Raises Gymnasium's errors."""
        modes = self._render_modes(env_id)
        options = {"render_mode": "ansi"} if "ansi" in modes and "render_mode" not in kwargs else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about versions and about seldom used features
            return self.gymnasium.make(env_id, **options, **kwargs)

    def _render_modes(self, env_id: str) -> list[str]:
        spec = self.gymnasium.spec(env_id)
        entry = spec.entry_point
        if isinstance(entry, str):
            module, _, name = entry.partition(":")
            entry = getattr(importlib.import_module(module), name)
        return list(getattr(entry, "metadata", {}).get("render_modes", []))

    async def run(self, what: str, work: Callable[[], T]) -> T:
        """Run `work` on a thread. Raises Failure timeout if it takes too long; the thread is then abandoned."""
        future = asyncio.get_running_loop().run_in_executor(self.threads, work)
        try:
            async with asyncio.timeout(self.settings.step_timeout_s):
                return await future
        except TimeoutError as error:
            if not future.cancelled():
                raise
            detail = f"{what} took longer than {self.settings.step_timeout_s:g} s (step_timeout_s)"
            raise Failure(FailureKind.TIMEOUT, detail) from error


def open_gym(settings: GymnasiumSettings) -> Gym:
    """Import Gymnasium and check the environment of the settings. Raises OperatorError if it cannot be created."""
    gymnasium = load("gymnasium", "gymnasium", "the environment gymnasium_text")
    for module in settings.modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise OperatorError(f"modules contains {module!r}, which cannot be imported: {error}") from error
    gym = Gym(gymnasium, ThreadPoolExecutor(settings.threads, thread_name_prefix="gymnasium"), settings)
    if settings.env_id is None:
        return gym
    try:
        env = gym.make(settings.env_id, settings.kwargs)
    except Exception as error:
        raise OperatorError(f"env_id {settings.env_id!r} cannot be created: {type(error).__name__}: {error}") from error
    try:
        actions = Actions(env.action_space, names_of(settings.env_id, settings.action_names))
        if not actions.expected:
            raise OperatorError(f"{settings.env_id} has the action space {env.action_space}, which has no text form")
    finally:
        env.close()
    return gym


# Shows an observation as text: the text itself, the environment's own drawing, a sentence, or JSON.

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_HIGHLIGHTED = re.compile(r"\x1b\[4[0-9]m(.)\x1b\[0m")
_CARDS = {1: "ace"}
_STANDS = "RGYB"


def observation_text(env: Any, observation: Any) -> str:
    """Return what the model reads. Environments with the render mode `ansi` are drawn.

    A drawing shows the position by a colour, which text does not have: it becomes brackets, as in `[S]FFF`.
    """
    if isinstance(observation, str):
        return observation
    name = env.spec.id if env.spec is not None else ""
    if name.startswith("Blackjack"):
        return _blackjack(observation)
    drawn = env.render() if env.render_mode == "ansi" else None
    if not isinstance(drawn, str):
        return as_json(observation)
    if name.startswith("Taxi"):
        return f"{_COLOURS.sub('', drawn).strip()}\n{_taxi(env.unwrapped, observation)}"
    return _COLOURS.sub("", _HIGHLIGHTED.sub(r"[\1]", drawn)).strip("\n")


def as_json(value: Any) -> str:
    """Return an observation as JSON, with arrays as lists."""
    return orjson.dumps(_plain(value), option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _taxi(env: Any, observation: Any) -> str:
    """Say what Taxi's drawing shows only by colours."""
    row, column, passenger, destination = (int(part) for part in env.decode(int(observation)))
    waiting = f"waits at {_STANDS[passenger]}" if passenger < len(_STANDS) else "is in the taxi"
    where = f"The taxi is in row {row}, column {column}, counted from 0 at the top left"
    return f"{where}. The passenger {waiting}. The destination is {_STANDS[destination]}."


def _blackjack(observation: Any) -> str:
    hand, card, ace = (int(part) for part in observation)
    return f"Your hand is worth {hand}{' with a usable ace' if ace else ''}. The dealer shows {_CARDS.get(card, card)}."


class GymnasiumSettings(EnvironmentSettings):
    env_id: str | None = None
    """Gymnasium's id of the environment, such as FrozenLake-v1; a row's `env_id` takes precedence."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of gymnasium.make, such as {is_slippery: false}; those of a row's `kwargs` take precedence."""
    modules: list[str] = Field(default_factory=list)
    """Modules that register further environments when they are imported."""
    action_names: list[str] = Field(default_factory=list)
    """Names of the discrete actions, in the order of their numbers; default: those of Gymnasium's own environments."""
    success_return: float | None = None
    """An episode with at least this return is a success; default: success is not defined."""
    step_timeout_s: float = Field(default=60.0, gt=0)
    """How long a reset or step may take. Must be below the agent's `tool_timeout_s`."""
    threads: int = Field(default=16, ge=1)
    """Number of threads that run the environments' methods."""
