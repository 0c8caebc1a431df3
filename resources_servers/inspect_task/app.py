"""inspect_task: a task of inspect_ai. Its solver sets up the conversation, its tools are offered, its scorers grade."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import orjson
from pydantic import Field

from rollyard.records.errors import Failure, FailureKind, OperatorError, RollyardError
from rollyard.records.inspect_log import parts_of, reward_fields, score_fields, tool_text
from rollyard.records.optional import require
from rollyard.records.rewards import VerdictField
from rollyard.records.types import Json, ServerRef
from rollyard.resources_servers.base import (
    BadTask,
    EnvironmentSettings,
    Models,
    ToolResult,
    Verdict,
    Verification,
    serve,
)
from rollyard.resources_servers.tools import EpisodeTools
from rollyard.services.responses.response_validity import is_answer, message_text

TESTED = "0.3.285"

PolicyCall = Callable[[list[Any], list[Any], Any], Awaitable[Any]]
"""Takes messages, tools and the tool choice, and returns a ModelOutput."""

MAX_CONNECTIONS = 1_000_000
"""A call to the policy waits for the agent, so all open episodes hold one. The agents limit them."""


class InspectPackage:
    def __init__(self) -> None:
        """Import inspect_ai. Raises OperatorError if it is missing or lacks a function."""
        require("inspect_ai", "inspect", "the environment inspect_task")
        self.model = self._module("inspect_ai.model")
        self.scorer = self._module("inspect_ai.scorer")
        self.solver = self._module("inspect_ai.solver")
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
        for sample_id, sample in self.samples.items():
            yield {"task": self.name, "sample": sample_id, "sample_sha256": digest(sample)}


def digest(sample: Any) -> str:
    content = sample.model_dump(mode="json", include={"input", "choices", "target", "metadata"}, exclude_none=True)
    if isinstance(messages := content.get("input"), list):
        for message in messages:
            message.pop("id", None)  # inspect_ai creates it at random in each process
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def load_task(settings: InspectSettings, package: InspectPackage) -> LoadedTask:
    """Load the task. Raises OperatorError if it does not exist, or needs what this environment does not have."""
    task = _task(settings, package)
    if not task.scorer:
        raise OperatorError(f"{task.name} has no scorer, so its episodes have no reward")
    scorers: dict[str, Any] = {}
    for number, scorer in enumerate(task.scorer, start=1):
        name = str(package.registry_name(scorer))
        scorers[name if name not in scorers else f"{name}_{number}"] = scorer
    try:
        numbered = list(enumerate(task.dataset, start=1))
    except TypeError as error:
        reason = f"{settings.task}: its samples are made while it runs (SampleSource), not read from a dataset"
        raise OperatorError(reason) from error
    samples = {str(number if sample.id is None else sample.id): sample for number, sample in numbered}
    if not samples:
        raise OperatorError(f"{settings.task} has no samples")
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
        reason = f"{settings.task} is {len(tasks)} tasks; expected one: path/to/file.py@name or package/name"
        raise OperatorError(reason)
    accepted = package.registry_params(tasks[0])
    if unknown := [name for name in settings.task_args if name not in accepted and "kwargs" not in accepted]:
        raise OperatorError(f"{settings.task} has no argument {', '.join(unknown)} (task_args)")
    return tasks[0]


def _check(task: Any, settings: InspectSettings, samples: dict[str, Any]) -> None:
    refused = f"{settings.task} cannot be an environment"
    if task.sandbox is not None:
        kind = getattr(task.sandbox, "type", task.sandbox)
        reason = f"{refused}: it runs in a sandbox ({kind}), which needs containers; expected a task without one"
        raise OperatorError(reason)
    needing = [key for key, sample in samples.items() if sample.sandbox or sample.files or sample.setup]
    if needing:
        listed = ", ".join(needing[:_SHOWN])
        raise OperatorError(
            f"{refused}: {len(needing)} of its samples need a sandbox, files or a setup script in one ({listed}, ...)"
        )
    if getattr(task, "approval", None):
        raise OperatorError(f"{refused}: its tool calls need approval; expected a task without an approval policy")


STOP_S = 5.0
"""How long a stopped solver may take to end."""


class NoGrader(OperatorError):
    """A scorer calls a model, but the config names no grader."""


@dataclass(frozen=True)
class ModelRequest:
    messages: list[Any]
    tools: list[Any]
    answer: asyncio.Future[Any]


class SolverEpisode:
    """The solver and the scorers of one sample."""

    def __init__(self, package: InspectPackage, task: LoadedTask, sample: Any, sample_id: str, grader: Any) -> None:
        """`grader`: the model for scorers and for tools that call a model; None if there is none."""
        self._package = package
        self._task = task
        self._sample = sample
        self._grader = grader
        self._policy = package.policy(self._ask)
        self.state = package.new_state(sample, sample_id)
        self._context = contextvars.copy_context()
        self._requests: asyncio.Queue[ModelRequest] = asyncio.Queue()
        self._request: ModelRequest | None = None
        self._solver: asyncio.Task[None] | None = None
        self._is_scoring = False

    @property
    def request(self) -> ModelRequest:
        """The solver's open call of the model. Raises Failure if the solver has ended without one."""
        if self._request is None:
            raise Failure(FailureKind.BAD_TASK, f"the solver of {self._task.name} ends without calling the model")
        return self._request

    @property
    def finished(self) -> bool:
        return self._solver is not None and self._solver.done() and not self._solver.cancelled()

    async def start(self) -> None:
        self._solver = asyncio.create_task(self._solve(), context=self._context)
        await self._advance()

    async def call(self, name: str, arguments: Json) -> ToolResult:
        """Answer the model call with a tool call. The result is `done` if the solver has ended."""
        if self._request is None:
            return ToolResult("The episode has ended; no tool can be called.", done=True)
        call_id = f"call_{uuid.uuid4().hex}"
        known = len(self._request.messages)
        self._answer(self._package.model.ModelOutput.for_tool_call("policy", name, arguments, tool_call_id=call_id))
        await self._advance()
        messages = self.state.messages if self._request is None else self._request.messages
        found = [message for message in messages if message.role == "tool" and message.tool_call_id == call_id]
        after = [message for message in messages[known:] if message.role == "user"] if self._request else []
        texts = [*map(tool_text, found), *(message.text for message in after)]
        done = self._request is None
        return ToolResult("\n\n".join(texts) or ("The answer was submitted." if done else ""), done=done)

    async def finish(self, text: str) -> None:
        """Answer the model call with the last message. If the solver then calls the model again, it is stopped."""
        if self._request is None:
            return
        output, request = self._package.model.ModelOutput.from_content("policy", text), self._request
        self._answer(output)
        await self._advance()
        if self._request is not None:
            await self._stop()
            # An agent inside the solver has a state of its own: the scorers read the output and the messages here.
            self.state.output = output
            self.state.messages = [*request.messages, output.message]

    async def score(self, scorer: Any) -> Any:
        """Return the scorer's Score. Exceptions of its code are raised unchanged; NoGrader if it needs a grader."""
        self._is_scoring = True
        grading: Awaitable[Any] = scorer(self.state, self.state.target)
        return await asyncio.create_task(_awaited(grading), context=self._context)

    async def close(self) -> None:
        await self._stop()
        if self._task.cleanup is not None:
            await asyncio.create_task(_awaited(self._task.cleanup(self.state)), context=self._context)

    async def _solve(self) -> None:
        scorers = list(self._task.scorers.values())
        name, policy, grader = self._task.name, self._policy, self._grader
        async with self._package.enter_episode(name, self._sample, self.state, policy, grader, scorers):
            self.state = await self._task.solver(self.state, self._generate)
            self._package.set_state(self.state)

    async def _generate(self, state: Any, tool_calls: Any = "loop", cache: Any = False, **config: Any) -> Any:
        """The `generate` that solvers receive. Parameters of the model are the row's, so `config` has no effect."""
        options = self._package.model.GenerateConfig(**config)
        return await self._package.generate_loop(self._policy, state, tool_calls, False, options)

    async def _ask(self, messages: list[Any], tools: list[Any], _: Any) -> Any:
        if self._is_scoring:
            if self._grader is None:
                raise NoGrader(
                    f"a scorer of {self._task.name} calls a model: set `grader` to a model server, "
                    "such as grader: {type: responses_api_models, name: policy_model}"
                )
            return await self._grader.api.generate(messages, tools, _, None)
        request = ModelRequest(list(messages), list(tools), asyncio.get_running_loop().create_future())
        await self._requests.put(request)
        return await request.answer

    def _answer(self, output: Any) -> None:
        assert self._request is not None
        request, self._request = self._request, None
        if not request.answer.done():
            request.answer.set_result(output)

    async def _advance(self) -> None:
        """Wait until the solver calls the model or ends. Raises the solver's exception."""
        assert self._solver is not None
        asking = asyncio.ensure_future(self._requests.get())
        try:
            await asyncio.wait({asking, self._solver}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not asking.done():
                asking.cancel()
        if asking.done() and not asking.cancelled():
            self._request = asking.result()
        elif self._solver.done():
            self._request = None
            self._solver.result()

    async def _stop(self) -> None:
        self._request = None
        if self._solver is not None and not self._solver.done():
            self._solver.cancel()
            await asyncio.wait({self._solver}, timeout=STOP_S)


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


async def rehearse(package: InspectPackage, task: LoadedTask) -> None:
    """Raise OperatorError if the solver fails or needs several answers, or if a scorer fails or needs a grader. Plays a
    task's first sample with an empty answer before the server starts, to find what cannot work.
    """
    sample_id, sample = next(iter(task.samples.items()))
    episode = SolverEpisode(package, task, sample, sample_id, None)
    step = "its solver fails"
    try:
        await episode.start()
        items_of(episode.request.messages)
        has_tools = bool(episode.request.tools)
        await episode.finish("")
        if not episode.finished and not has_tools:
            raise OperatorError(
                f"the solver of {task.name} calls the model again after its answer, such as self_critique; "
                "an episode ends with the first message without a tool call. Expected a solver that calls it once, "
                "or has tools"
            )
        for name, scorer in task.scorers.items():
            step = f"its scorer {name} fails on an empty answer"
            await episode.score(scorer)
    except RollyardError as error:
        if isinstance(error, OperatorError):
            raise
        raise OperatorError(f"{task.name} cannot be an environment: {error}") from error
    except Exception as error:  # the task's own code runs here
        problem = f"{type(error).__name__}: {error}"
        reason = f"{task.name} cannot be an environment: {step} ({problem}); rehearse: false skips this"
        raise OperatorError(reason) from error
    finally:
        await episode.close()


def items_of(messages: Sequence[Any]) -> list[Json]:
    """Return the messages as Responses items. Raises BadTask for content that an agent cannot send, such as audio."""
    return [item for message in messages for item in _items(message)]


def _items(message: Any) -> list[Json]:
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": tool_text(message)}]
    if message.role != "assistant":
        return [{"role": message.role, "content": _content(message.content)}]
    text = message.text
    items: list[Json] = [{"role": "assistant", "content": text}] if text else []
    for call in message.tool_calls or ():
        arguments = orjson.dumps(call.arguments).decode()
        items.append({"type": "function_call", "call_id": call.id, "name": call.function, "arguments": arguments})
    return items


def _content(content: Any) -> str | list[Json]:
    if isinstance(content, str):
        return content
    if all(part.type == "text" for part in content):
        return "\n".join(part.text for part in content)
    items: list[Json] = []
    for part in content:
        if part.type == "text":
            items.append({"type": "input_text", "text": part.text})
        elif part.type == "image" and part.image.startswith(("data:", "http://", "https://")):
            items.append({"type": "input_image", "image_url": part.image, "detail": part.detail})
        else:
            found = f"an image file ({part.image})" if part.type == "image" else f"content of type {part.type}"
            raise BadTask(f"the sample contains {found}; expected text, or images as data: or https: URLs")
    return items


def function_tools(tools: Sequence[Any]) -> list[Json]:
    shown = [(tool.name, tool.description, tool.parameters.model_dump(exclude_none=True)) for tool in tools]
    keys = ("name", "description", "parameters")
    return [{"type": "function", **dict(zip(keys, values, strict=True)), "strict": False} for values in shown]


def grader_model(package: InspectPackage, models: Models, server: str, timeout_s: float) -> Any:
    """Return the model. A call fails with the server's Failure; tools are not supported."""

    async def respond(messages: list[Any], tools: list[Any], _: Any) -> Any:
        if tools:
            detail = f"a scorer offers tools to the grader {server}; only graders without tools are supported"
            raise Failure(FailureKind.BAD_TASK, detail)
        response = await models.respond(server, {"input": items_of(messages)}, timeout_s=timeout_s)
        texts = [message_text(item) for item in response["output"] if is_answer(item)]
        return package.model.ModelOutput.from_content(server, "".join(texts))

    return package.policy(respond)


@dataclass(frozen=True)
class Loaded:
    package: InspectPackage
    task: LoadedTask
    grader: Any


class InspectTask(EpisodeTools[InspectSettings]):
    verdict_fields = (
        VerdictField(path="extracted_answer", role="extracted"),
        VerdictField(path="scores", role="reason"),
        VerdictField(path="solver_finished", role="reason"),
    )
    stateless = False
    shared: ClassVar[Loaded]

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: InspectSettings) -> AsyncIterator[Loaded]:
        """Load and rehearse the task. Raises OperatorError if it does not exist or cannot be an environment."""
        package = InspectPackage()
        task = load_task(settings, package)
        grader = None
        if settings.grader is not None:
            grader = grader_model(package, cls.models, settings.grader.name, settings.grader_timeout_s)
        elif settings.rehearse:
            await rehearse(package, task)
        yield Loaded(package, task, grader)

    def __init__(self, task: Mapping[str, Any], settings: InspectSettings) -> None:
        """Find the row's sample. Raises BadTask if the task has no such sample, or another version of it."""
        super().__init__(task, settings)
        loaded = self.shared
        sample_id = str(task.get("sample"))
        sample = loaded.task.samples.get(sample_id)
        if sample is None:
            known = ", ".join(list(loaded.task.samples)[:3])
            raise BadTask(f"the row's `sample` is {sample_id!r}; {loaded.task.name} has {known}, ...")
        if (expected := task.get("sample_sha256")) is not None and expected != digest(sample):
            raise BadTask(f"sample {sample_id} has changed since the row was written: prepare the rows again")
        self._solver = SolverEpisode(loaded.package, loaded.task, sample, sample_id, loaded.grader)

    async def seed(self) -> list[Json]:
        """Run the solver until it calls the model, and return the messages of that call."""
        await self._solver.start()
        return items_of(self._solver.request.messages)

    def episode_tools(self) -> list[Json]:
        return function_tools(self._solver.request.tools)

    async def call_episode_tool(self, name: str, arguments: Json) -> ToolResult | str:
        """Let the solver call the tool. inspect_ai reports unknown tools and invalid arguments to the model."""
        result = await self._solver.call(name, arguments)
        return result if result.done else str(result.output)

    async def verify(self, response: Verification) -> Verdict:
        await self._solver.finish(response.text)
        scorers = self.shared.task.scorers
        scores = {name: await self._solver.score(scorer) for name, scorer in scorers.items()}
        return verdict_of(scores, self.settings, finished=self._solver.finished)

    async def close(self) -> None:
        await self._solver.close()


def verdict_of(scores: Mapping[str, Any], settings: InspectSettings, *, finished: bool) -> Verdict:
    """Return the verdict. Raises Failure if the scorer that gives the reward could not score the episode."""
    name = settings.scorer or next(iter(scores))
    score = scores[name]
    if score is None:
        raise Failure(FailureKind.MALFORMED_ANSWER, f"the scorer {name} gave no score (None), which is not a reward")
    value, key = score.value, settings.score_key
    if isinstance(value, Mapping) and key is not None:
        if key not in value:
            found = ", ".join(map(str, value)) or "none"
            raise Failure(FailureKind.BAD_TASK, f"the score of {name} has no key {key!r} (score_key); found {found}")
        value = [value[key]]
    if not (verdict := reward_fields(value)):
        detail = f"the scorer {name} gave no score ({score.value!r:.100}), which is not a reward"
        # The answer may decide whether a text is a grade, and must not get another attempt for it.
        has_text = any(isinstance(part, str) for part in parts_of(value))
        raise Failure(FailureKind.BAD_TASK if has_text else FailureKind.MALFORMED_ANSWER, detail)
    more: Json = {} if score.answer is None else {"extracted_answer": score.answer}
    recorded = {each: score_fields(one) for each, one in scores.items() if one is not None}
    return Verdict(**verdict, scores=recorded, solver_finished=finished, **more)


server = serve(InspectTask)
