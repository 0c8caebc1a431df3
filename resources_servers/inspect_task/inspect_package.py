"""The parts of inspect_ai that this environment uses, found once when the server starts.

inspect_ai runs a sample only as part of an evaluation of its own, in which it calls the model. Here an agent calls the
model, so the environment runs a task's solver and scorers itself. Some of the functions for this are not public; if one
is missing, `load` names it and the version.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any

from rollyard.records.errors import OperatorError
from rollyard.records.optional import require

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
            raise OperatorError(
                f"{self._version()} has no {module}.{name}; install {TESTED}, with which this environment is tested"
            ) from error

    def _version(self) -> str:
        return f"inspect_ai {version('inspect_ai')}"

    def load_tasks(self, spec: str, arguments: dict[str, Any]) -> list[Any]:
        """Load the tasks that `spec` names. Exceptions of their code are raised unchanged."""
        found: list[Any] = self.load_task_specs(spec, arguments)
        return found

    def arguments_of(self, task: Any) -> dict[str, Any]:
        """Return the arguments with which the task was created; inspect_ai drops those that it does not have."""
        found: dict[str, Any] = self.registry_params(task)
        return found

    def plan(self, task: Any) -> Any:
        """Return the task's setup and solvers as one solver."""
        return self.plan_of(task, None)

    def name_of(self, scorer: Any) -> str:
        """Return the scorer's registered name without its package."""
        return str(self.registry_name(scorer))

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
