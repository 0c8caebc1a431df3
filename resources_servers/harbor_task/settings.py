"""Settings of the environment harbor_task."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from rollyard.resources_servers.base import EnvironmentSettings
from rollyard.services.sandbox.shell_box import BoxLimits

EXAMPLES = Path(__file__).parent / "examples"


class HarborSettings(EnvironmentSettings):
    """Where the tasks are, and what their boxes may do."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = EnvironmentSettings.NOT_IDENTITY | {"slots"}

    tasks: Path | None = None
    """A folder of task folders, or one task folder; null: the example tasks of this environment."""
    accept_images: tuple[str, ...] = ()
    """Patterns of base images that this host's own programs replace, such as `ubuntu:*`. Without a pattern, an image is
    accepted if it names this host's distribution and version."""
    host_paths: tuple[Path, ...] = ()
    """Folders of this host that are visible read-only in the boxes, such as an interpreter. A folder `bin` in one of
    them comes first in PATH."""
    limits: BoxLimits = BoxLimits()
    """Limits of each box. A smaller memory_mb or storage_mb in task.toml takes precedence."""
    command_timeout_s: float = Field(default=60.0, gt=0)
    """Time limit of one command, unless the model asks for another. Must be less than the agent's tool_timeout_s."""
    max_command_s: float = Field(default=600.0, gt=0)
    """Longest time limit that the model may ask for."""
    episode_s: float = Field(default=1800.0, gt=0)
    """Time that all commands of an episode may take if task.toml has no agent.timeout_sec."""
    max_test_s: float = Field(default=900.0, gt=0)
    """Longest time limit of the tests; verifier.timeout_sec in task.toml can only shorten it."""
    max_build_s: float = Field(default=300.0, gt=0)
    """Longest time limit of the Dockerfile's RUN instructions; environment.build_timeout_sec can only shorten it."""
    keep_processes: bool = False
    """Let processes that the model started in the background run during the tests, as Harbor does. They could then read
    the tests and forge the reward; set it for tasks whose tests call a server that the model starts."""
    reward_key: str | None = None
    """Key of the reward in reward.json; null: `reward`, or the mean of all values."""
    slots: int | None = Field(default=None, ge=1)
    """Maximum number of commands that run at the same time; null: two per CPU. Waiting does not count as run time."""
