"""Settings of a verifiers taskset."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rollyard.resources_servers.base import EnvironmentSettings


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
