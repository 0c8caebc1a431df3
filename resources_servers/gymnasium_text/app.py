"""Plays Gymnasium environments whose observations and actions have a text form."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import math
import re
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import orjson
from pydantic import Field

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.optional import load
from rollyard.records.rewards import VerdictField
from rollyard.records.types import Json
from rollyard.resources_servers.base import (
    BadTask,
    Environment,
    EnvironmentSettings,
    InvalidToolCall,
    ToolResult,
    Turn,
    Verdict,
    Verification,
    serve,
    tool,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Gym:
    gymnasium: Any
    threads: ThreadPoolExecutor
    settings: GymnasiumSettings

    def make(self, env_id: str, kwargs: Mapping[str, Any]) -> Any:
        """Create an environment that draws itself as text, if it can. Raises Gymnasium's errors."""
        entry = self.gymnasium.spec(env_id).entry_point
        if isinstance(entry, str):
            module, _, name = entry.partition(":")
            entry = getattr(importlib.import_module(module), name)
        modes = getattr(entry, "metadata", {}).get("render_modes", [])
        options = {"render_mode": "ansi"} if "ansi" in modes and "render_mode" not in kwargs else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about versions and about seldom used features
            return self.gymnasium.make(env_id, **options, **kwargs)

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
    env.close()
    return gym


# Shows an observation as text: the text itself, the environment's own drawing, a sentence, or JSON.

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_HIGHLIGHTED = re.compile(r"\x1b\[4[0-9]m(.)\x1b\[0m")


def observation_text(env: Any, observation: Any) -> str:
    """Return what the model reads. Environments with the render mode `ansi` are drawn. A drawing shows the position by
    a colour, which text does not have: it becomes brackets, as in `[S]FFF`.
    """
    if isinstance(observation, str):
        return observation
    name = env.spec.id if env.spec is not None else ""
    if name.startswith("Blackjack"):
        hand, card, ace = (int(part) for part in observation)
        usable, shown = " with a usable ace" if ace else "", "ace" if card == 1 else card
        return f"Your hand is worth {hand}{usable}. The dealer shows {shown}."
    drawn = env.render() if env.render_mode == "ansi" else None
    if not isinstance(drawn, str):
        return orjson.dumps(_plain(observation), option=orjson.OPT_NON_STR_KEYS).decode()
    if name.startswith("Taxi"):  # its drawing shows the passenger and the destination only by colours
        row, column, passenger, destination = (int(part) for part in env.unwrapped.decode(int(observation)))
        waiting = f"waits at {'RGYB'[passenger]}" if passenger < 4 else "is in the taxi"
        where = f"The taxi is in row {row}, column {column}, counted from 0 at the top left"
        told = f"{where}. The passenger {waiting}. The destination is {'RGYB'[destination]}."
        return f"{_COLOURS.sub('', drawn).strip()}\n{told}"
    return _COLOURS.sub("", _HIGHLIGHTED.sub(r"[\1]", drawn)).strip("\n")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


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


NAMES: Mapping[str, Sequence[str]] = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "nothing", "right"),
    "Acrobot": ("negative", "nothing", "positive"),
}
"""Names of the discrete actions of Gymnasium's own environments, in the order of their numbers."""
_TAG = re.compile(r"<action>((?:(?!</?action>).)*)</action>", re.IGNORECASE | re.DOTALL)


class InvalidAction(ValueError):
    """The text is not an action. The message tells the model what is expected."""


class Actions:
    def __init__(self, space: Any, names: Sequence[str], env_id: str = "") -> None:
        """`names`: those of the settings; without any, they are those of Gymnasium's own environments."""
        name = env_id.rpartition(":")[2].rpartition("/")[2]
        names = names or next((own for known, own in NAMES.items() if name.startswith(known)), ())
        self._space = space
        is_discrete = type(space).__name__ == "Discrete"  # MultiDiscrete has a `start` as well, which is an array
        self._start = int(space.start) if is_discrete else 0
        self._count = int(space.n) if is_discrete else None
        self._is_text = type(space).__name__ == "Text"
        self._names = {name.lower(): self._start + number for number, name in enumerate(names)}

    @property
    def expected(self) -> str:
        if self._count is not None:
            last = self._start + self._count - 1
            numbers = f"a number from {self._start} to {last}"
            return f"one of {', '.join(self._names)}, or {numbers}" if self._names else numbers
        return "a text" if self._is_text else f"JSON in the action space {self._space}"

    def parse(self, text: str) -> Any:
        if self._is_text:
            if not self._space.contains(text):
                raise InvalidAction(f"{_shown(text)} is not in the action space {self._space}.")
            return text
        stripped = text.strip()
        if self._count is not None:
            number = self._names.get(stripped.lower())
            if number is None and re.fullmatch(r"-?\d{1,9}", stripped):
                number = int(stripped)
            if number is None or not self._space.contains(number):
                raise InvalidAction(f"{_shown(text)} is not an action. Expected {self.expected}.")
            return number
        try:
            action = from_json(self._space, orjson.loads(stripped))
            valid = self._space.contains(action)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise InvalidAction(f"{_shown(text)} is not an action. Expected {self.expected}.") from error
        if not valid:
            raise InvalidAction(f"{_shown(text)} is outside the action space {self._space}.")
        return action


def from_json(space: Any, value: Any) -> Any:
    """Return a JSON value as an element of the space, which the caller must check with `contains`. `from_jsonable` of
    Dict and Tuple takes the values of each part together, and the spaces of whole numbers cut off decimals. Raises
    ValueError, TypeError, KeyError, IndexError or AttributeError if the value has another form.
    """
    kind = type(space).__name__
    if kind == "Dict":
        if value.keys() != space.spaces.keys():
            raise ValueError(f"expected the keys {', '.join(map(str, space.spaces))}")
        return {key: from_json(part, value[key]) for key, part in space.spaces.items()}
    if kind == "Tuple":
        return tuple(from_json(part, one) for part, one in zip(space.spaces, value, strict=True))
    if kind in ("Discrete", "MultiDiscrete", "MultiBinary"):
        _check_whole(value)
    return space.from_jsonable([value])[0]


def _check_whole(value: Any) -> None:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, list):
            _check_whole(each)
        elif not isinstance(each, int) or isinstance(each, bool):
            raise ValueError(f"{each!r} is not a whole number")


def _shown(text: str) -> str:
    return f"{text[:100]!r}..." if len(text) > 100 else repr(text)


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
        given = {name: task.get(name, {}) for name in ("kwargs", "options")}
        for name, found in given.items():
            if not isinstance(found, dict):
                raise BadTask(f"{name} is {found!r:.100}; expected an object")
        self._kwargs, self._options = {**shared, **given["kwargs"]}, given["options"]
        self._seed = task.get("seed")
        if not isinstance(self._seed, int) or isinstance(self._seed, bool) or self._seed < 0:
            reason = f"seed is {self._seed!r:.100}; expected a non-negative integer, so that the task is repeatable"
            raise BadTask(reason)
        self._env: Any = None
        self._actions: Actions
        self._text = ""
        self._return = 0.0
        self._steps = 0
        self._terminated = self._truncated = False

    @classmethod
    @contextlib.asynccontextmanager
    async def lifespan(cls, settings: GymnasiumSettings) -> AsyncIterator[Gym]:
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
            observation, reward = await self._step(next(reversed(_TAG.findall(text)), text))
        except InvalidAction as error:
            return Turn(f"{error}\n{self._text}")
        return Turn(observation, reward, self._terminated, self._truncated)

    async def verify(self, response: Verification) -> Verdict:
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
        self._actions = Actions(env.action_space, self.settings.action_names, str(self._env_id))
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


server = serve(GymnasiumText)
