"""Settings of Gymnasium environments."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rollyard.resources_servers.base import EnvironmentSettings


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
