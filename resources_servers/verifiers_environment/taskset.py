"""Loads a taskset of the package verifiers (0.4, whose environments are tasksets)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.records.errors import OperatorError
from rollyard.records.optional import load
from rollyard.resources_servers.verifiers_environment.settings import VerifiersSettings
from rollyard.resources_servers.verifiers_environment.toolset import OpenToolset, toolset_of

FEATURE = "the environment verifiers_environment"


@dataclass(frozen=True)
class LoadedTaskset:
    """The tasks by their number, and what their episodes share."""

    verifiers: Any
    tasks: Sequence[Any]
    shared_toolsets: Sequence[OpenToolset]


def load_taskset(settings: VerifiersSettings) -> tuple[Any, list[Any], list[Any]]:
    """Return the package, the tasks, and the taskset's shared toolsets, which are not open yet.

    Raises OperatorError if the taskset cannot be loaded, or needs what is not supported.
    """
    verifiers = load("verifiers.v1", "verifiers", FEATURE)
    loaders = load("verifiers.v1.utils.loaders", "verifiers", FEATURE)
    try:
        config = loaders.taskset_config_type(settings.taskset).model_validate(
            {**settings.arguments, "id": settings.taskset}
        )
        program = loaders.environment_class(settings.taskset)
        taskset = loaders.load_taskset(config)
        tasks = list(itertools.islice(taskset, settings.max_tasks))
        shared = list(type(taskset).toolsets(config))
    except Exception as error:  # the taskset's code may raise anything
        found = f"taskset {settings.taskset!r} with arguments {settings.arguments!r:.200}"
        raise OperatorError(f"{found} cannot be loaded: {type(error).__name__}: {error}") from error
    if program is not verifiers.SingleAgentEnv:
        raise OperatorError(
            f"taskset {settings.taskset!r} has a program of its own, {program.__name__}, which calls the model itself, "
            "for several agents or a simulated user. Only tasksets for one agent can be played here; use vf-eval"
        )
    if any(task.NEEDS_CONTAINER for task in tasks):
        raise OperatorError(f"taskset {settings.taskset!r} needs containers, which are not supported here; use vf-eval")
    if not tasks:
        raise OperatorError(f"taskset {settings.taskset!r} has no tasks")
    return verifiers, tasks, shared


async def open_taskset(settings: VerifiersSettings) -> LoadedTaskset:
    """Load the taskset and open its shared toolsets. Raises OperatorError."""
    verifiers, tasks, shared = load_taskset(settings)
    return LoadedTaskset(verifiers, tasks, [await toolset_of(each, None) for each in shared])
