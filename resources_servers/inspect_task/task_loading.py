"""Loads an inspect_ai task and refuses what an environment cannot provide."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.inspect_task.inspect_package import InspectPackage
from rollyard.resources_servers.inspect_task.settings import InspectSettings

_FOLDER = Path(__file__).parent
_SHOWN = 3
"""Number of sample ids in an error message."""


@dataclass(frozen=True)
class LoadedTask:
    """A task and what an episode needs of it."""

    name: str
    solver: Any
    """The task's setup and solvers as one Plan."""
    scorers: dict[str, Any]
    """Scorers by name, in the task's order."""
    samples: dict[str, Any]
    """Samples by their id as text; a sample without id has its number in the dataset, from 1."""
    cleanup: Any
    """The task's cleanup function; None if it has none."""

    def rows(self) -> Iterator[Json]:
        """Yield the dataset rows, one per sample."""
        for sample_id, sample in self.samples.items():
            yield {"task": self.name, "sample": sample_id, "sample_sha256": digest(sample)}


def digest(sample: Any) -> str:
    """Return a hash of what determines a sample, to notice rows that belong to another version of the dataset."""
    content = sample.model_dump(mode="json", include={"input", "choices", "target", "metadata"}, exclude_none=True)
    _drop_message_ids(content)
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _drop_message_ids(content: Json) -> None:
    """Remove the ids of chat messages, which inspect_ai creates at random in each process."""
    if isinstance(messages := content.get("input"), list):
        for message in messages:
            message.pop("id", None)


def load_task(settings: InspectSettings, package: InspectPackage) -> LoadedTask:
    """Load the task. Raises OperatorError if it does not exist, or needs what this environment does not have."""
    task = _task(settings, package)
    scorers = _scorers(task, package)
    samples = {
        str(sample.id if sample.id is not None else number): sample
        for number, sample in enumerate(_dataset(task, settings.task), start=1)
    }
    _check(task, settings, samples)
    if settings.scorer is not None and settings.scorer not in scorers:
        known = ", ".join(scorers)
        raise OperatorError(f"{settings.task} has no scorer {settings.scorer!r}; it has {known}")
    return LoadedTask(task.name, package.plan(task), scorers, samples, task.cleanup)


def _task(settings: InspectSettings, package: InspectPackage) -> Any:
    spec = settings.task
    file, at, name = spec.rpartition("@")
    if at and not Path(file).is_file():
        own = _FOLDER / file
        if Path(file).is_absolute() or not own.is_file():
            raise OperatorError(f"task: {file} does not exist; expected path/to/file.py@name (looked in {Path.cwd()})")
        spec = f"{own}@{name}"
    if not at and "/" not in spec:
        raise OperatorError(f"task is {spec!r}; expected path/to/file.py@name or package/name")
    try:
        tasks = package.load_tasks(spec, dict(settings.task_args))
    except Exception as error:  # the task's own code runs here
        raise OperatorError(f"task {settings.task} cannot be loaded: {type(error).__name__}: {error}") from error
    if len(tasks) != 1:
        raise OperatorError(
            f"{settings.task} is {len(tasks)} tasks; expected one: path/to/file.py@name or package/name"
        )
    accepted = package.arguments_of(tasks[0])
    if unknown := [name for name in settings.task_args if name not in accepted and "kwargs" not in accepted]:
        raise OperatorError(f"{settings.task} has no argument {', '.join(unknown)} (task_args)")
    return tasks[0]


def _dataset(task: Any, spec: str) -> list[Any]:
    try:
        samples = list(task.dataset)
    except TypeError as error:
        raise OperatorError(
            f"{spec}: its samples are made while it runs (SampleSource), not read from a dataset"
        ) from error
    if not samples:
        raise OperatorError(f"{spec} has no samples")
    return samples


def _scorers(task: Any, package: InspectPackage) -> dict[str, Any]:
    scorers = task.scorer or []
    if not scorers:
        raise OperatorError(f"{task.name} has no scorer, so its episodes have no reward")
    found: dict[str, Any] = {}
    for number, scorer in enumerate(scorers, start=1):
        name = package.name_of(scorer)
        found[name if name not in found else f"{name}_{number}"] = scorer
    return found


def _check(task: Any, settings: InspectSettings, samples: dict[str, Any]) -> None:
    refused = f"{settings.task} cannot be an environment"
    if task.sandbox is not None:
        kind = getattr(task.sandbox, "type", task.sandbox)
        raise OperatorError(
            f"{refused}: it runs in a sandbox ({kind}), which needs containers; expected a task without one"
        )
    needing = [key for key, sample in samples.items() if sample.sandbox or sample.files or sample.setup]
    if needing:
        listed = ", ".join(needing[:_SHOWN])
        raise OperatorError(
            f"{refused}: {len(needing)} of its samples need a sandbox, files or a setup script in one ({listed}, ...)"
        )
    if getattr(task, "approval", None):
        raise OperatorError(f"{refused}: its tool calls need approval; expected a task without an approval policy")
