"""Runs a task's solver for one episode. Whenever the solver calls the model, it waits until the agent has the answer.

agent                         solver (a task of its own)
/seed_session     ->          runs until its first call of the model: messages and tools
/<tool>           ->          the call returns this tool call; runs the tool, calls the model again
/verify           ->          the call returns the last message; ends, or calls the model again: then it is stopped
the scorers grade the state
"""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind, OperatorError, RollyardError
from rollyard.records.types import Json
from rollyard.resources_servers.base import BadTask, Models, ToolResult
from rollyard.resources_servers.inspect_task.inspect_package import InspectPackage, LoadedTask
from rollyard.services.responses.response_validity import is_answer, message_text

STOP_S = 5.0
"""How long a stopped solver may take to end."""


class NoGrader(OperatorError):
    """A scorer calls a model, but the config names no grader."""


@dataclass(frozen=True)
class ModelRequest:
    """A call of the model by the solver, which waits for `answer`."""

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
        """Whether the solver has ended by itself."""
        return self._solver is not None and self._solver.done() and not self._solver.cancelled()

    async def start(self) -> None:
        """Run the solver until it calls the model. Exceptions of its code are raised unchanged."""
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
        output = self._package.model.ModelOutput.from_content("policy", text)
        request = self._request
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
        """Stop the solver, and run the task's cleanup function."""
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
    """Raise OperatorError if the solver fails or needs several answers, or if a scorer fails or needs a grader.

    Plays a task's first sample with an empty answer before the server starts, to find what cannot work.
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
        raise OperatorError(
            f"{task.name} cannot be an environment: {step} ({problem}); rehearse: false skips this"
        ) from error
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
    return [_part(part) for part in content]


def _part(part: Any) -> Json:
    if part.type == "text":
        return {"type": "input_text", "text": part.text}
    if part.type == "image" and part.image.startswith(("data:", "http://", "https://")):
        return {"type": "input_image", "image_url": part.image, "detail": part.detail}
    found = f"an image file ({part.image})" if part.type == "image" else f"content of type {part.type}"
    raise BadTask(f"the sample contains {found}; expected text, or images as data: or https: URLs")


def tool_text(message: Any) -> str:
    """Return a tool's result as text. An error's message comes first, because the content is then empty."""
    error = f"{message.error.message}\n" if message.error is not None else ""
    return f"{error}{message.text}".rstrip("\n") if error else str(message.text)


def function_tools(tools: Sequence[Any]) -> list[Json]:
    """Return inspect_ai's ToolInfo objects as Responses function tools."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters.model_dump(exclude_none=True),
            "strict": False,
        }
        for tool in tools
    ]


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
