"""The parts of inspect_ai that this environment uses, found once when the server starts.

inspect_ai runs a sample only as part of an evaluation of its own, in which it calls the model. Here an agent calls the
model, so the environment runs a task's solver and scorers itself. Some of the functions for this are not public; if one
is missing, `load` names it and the version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
from pydantic import Field

from rollyard.records.errors import OperatorError
from rollyard.records.optional import require
from rollyard.records.types import Json, ServerRef
from rollyard.resources_servers.base import EnvironmentSettings

TESTED = "0.3.285"

PolicyCall = Callable[[list[Any], list[Any], Any], Awaitable[Any]]
"""Takes messages, tools and the tool choice, and returns a ModelOutput."""

MAX_CONNECTIONS = 1_000_000
"""A call to the policy waits for the agent, so all open episodes hold one. The agents limit them."""


class InspectPackage:
    """inspect_ai, imported."""

    def __init__(self) -> None:
        """Import inspect_ai. Raises OperatorError if it is missing or lacks a function."""
        require("inspect_ai", "inspect", "the environment inspect_task")
        self.model = self._module("inspect_ai.model")
        self.scorer = self._module("inspect_ai.scorer")
        self.solver = self._module("inspect_ai.solver")
        self.tool = self._module("inspect_ai.tool")
        self.new_api = _policy_api(self.model)
        self.load_task_specs: Any = self._member("inspect_ai._eval.loader", "load_task_spec")
        self.plan_of: Any = self._member("inspect_ai._eval.task.run", "resolve_plan")
        self.generate_loop: Any = self._member("inspect_ai._eval.task.generate", "task_generate")
        self.sample_messages: Any = self._member("inspect_ai._eval.task.util", "sample_messages")
        self.init_task_context: Any = self._member("inspect_ai._eval.context", "init_task_context")
        self.init_sample_data: Any = self._member("inspect_ai.model._model", "init_sample_model_data")
        self.transcript: Any = self._member("inspect_ai.log._transcript", "Transcript")
        self.init_transcript: Any = self._member("inspect_ai.log._transcript", "init_transcript")
        self.init_store: Any = self._member("inspect_ai.util._store", "init_subtask_store")
        self.active_sample: Any = self._member("inspect_ai.log._samples", "active_sample")
        self.set_state: Any = self._member("inspect_ai.solver._task_state", "set_sample_state")
        self.init_scoring: Any = self._member("inspect_ai.scorer._score", "init_scoring_context")
        self.registry_params: Any = self._member("inspect_ai._util.registry", "registry_params")
        self.registry_name: Any = self._member("inspect_ai._util.registry", "registry_unqualified_name")

    def _module(self, name: str) -> ModuleType:
        try:
            return import_module(name)
        except ImportError as error:
            raise OperatorError(f"{self._version()} cannot be imported: {error}") from error

    def _member(self, module: str, name: str) -> Any:
        try:
            return getattr(self._module(module), name)
        except AttributeError as error:
            missing = f"{self._version()} has no {module}.{name}"
            raise OperatorError(f"{missing}; install {TESTED}, with which this environment is tested") from error

    def _version(self) -> str:
        return f"inspect_ai {version('inspect_ai')}"

    def policy(self, call: PolicyCall) -> Any:
        """Return a model whose every call is answered by `call`."""
        config = self.model.GenerateConfig(max_connections=MAX_CONNECTIONS, max_retries=0)
        api = self.new_api("policy")
        api.respond = call
        return self.model.Model(api, config)

    def new_state(self, sample: Any, sample_id: str) -> Any:
        """Return the state in which a sample's episode begins, with copies of everything that solvers may change."""
        copy = sample.model_copy(deep=True)
        return self.solver.TaskState(
            model=self.model.ModelName("rollyard/policy"),
            sample_id=copy.id if copy.id is not None else sample_id,
            epoch=1,
            input=copy.input,
            messages=self.sample_messages(copy),
            target=self.scorer.Target(copy.target),
            choices=copy.choices,
            metadata=copy.metadata or {},
        )

    def enter_episode(
        self, name: str, sample: Any, state: Any, policy: Any, grader: Any, scorers: list[Any]
    ) -> AbstractAsyncContextManager[Any]:
        """Set the context variables of the current task, so that solvers, tools and scorers find their episode's.

        Return the context in which the solver must run.
        """
        self.init_task_context(policy, {"grader": grader} if grader is not None else {})
        self.init_sample_data()
        self.set_state(state)
        transcript = self.transcript()
        self.init_transcript(transcript)
        self.init_store(state.store)
        self.init_scoring(scorers, state.target)
        limits = ("message_limit", "token_limit", "cost_limit", "time_limit", "working_limit")
        found: AbstractAsyncContextManager[Any] = self.active_sample(
            task=name,
            log_location="",
            model=str(state.model),
            sample=sample.model_copy(update={"id": state.sample_id}),
            epoch=1,
            fails_on_error=True,
            transcript=transcript,
            eval_id=name,
            sample_uuid=state.uuid,
            **dict.fromkeys(limits),
        )
        return found


def _policy_api(model: ModuleType) -> Any:
    """Return a function that creates the API of a model; `respond` of the result must be set."""

    class PolicyApi(model.ModelAPI):  # type: ignore[name-defined,misc]
        respond: PolicyCall

        def __init__(self, model_name: str) -> None:
            super().__init__(model_name)

        async def generate(self, input: list[Any], tools: list[Any], tool_choice: Any, config: Any) -> Any:
            return await self.respond(input, tools, tool_choice)

    return model.modelapi(name="rollyard")(PolicyApi)


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
    if isinstance(messages := content.get("input"), list):
        for message in messages:
            message.pop("id", None)  # inspect_ai creates it at random in each process
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


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
    return LoadedTask(task.name, package.plan_of(task, None), scorers, samples, task.cleanup)


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
        tasks = package.load_task_specs(spec, dict(settings.task_args))
    except Exception as error:  # the task's own code runs here
        raise OperatorError(f"task {settings.task} cannot be loaded: {type(error).__name__}: {error}") from error
    if len(tasks) != 1:
        raise OperatorError(
            f"{settings.task} is {len(tasks)} tasks; expected one: path/to/file.py@name or package/name"
        )
    accepted = package.registry_params(tasks[0])
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
        name = str(package.registry_name(scorer))
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
