"""Gymnasium's environments on threads: their methods are synchronous and may take long."""

from __future__ import annotations

import asyncio
import importlib
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.optional import load
from rollyard.resources_servers.gymnasium_text.actions import Actions, names_of
from rollyard.resources_servers.gymnasium_text.settings import GymnasiumSettings

T = TypeVar("T")


@dataclass(frozen=True)
class Gym:
    """What all episodes of a server share."""

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
