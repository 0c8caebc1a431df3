"""Settings of the environment inspect_task."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rollyard.records.types import ServerRef
from rollyard.resources_servers.base import EnvironmentSettings

EXAMPLE_TASK = "example_task.py@sums"


class InspectSettings(EnvironmentSettings):
    """Which task is played, and how its scores become a reward."""

    task: str = EXAMPLE_TASK
    """The task: `path/to/file.py@name`, or `package/name` for a task that an installed package registers. A relative
    path is looked for in the working directory, then in this environment's folder."""
    task_args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the task function."""
    scorer: str | None = None
    """Name of the scorer whose score is the reward; null: the task's first."""
    score_key: str | None = None
    """Key of the reward in a score that is a dictionary; null: the mean of its values."""
    grader: ServerRef | None = None
    """Model server that answers scorers and tools that call a model, such as model_graded_qa."""
    grader_timeout_s: float = Field(default=300.0, gt=0)
    """Timeout of one call to the grader."""
    rehearse: bool = True
    """Before the start, play the first sample with an empty answer. This finds solvers and scorers that cannot work."""
