"""StackEnvironments: `environment_factory` and reward of TRL's GRPOTrainer, on an environment of a running stack.

TRL generates, with its own engine, and calls the tools; the environment plays. For agents, use RolloutFunc.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson

from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.rows import messages_of, text_of, valid_rows
from rollyard.records.types import Json, items, mapping
from rollyard.services.interop.environment import EpisodeOutcome, ServedEpisode, tools_of
from rollyard.training.trl.stack_session import StackSession

T = TypeVar("T")
FAILED = "The environment has failed. The episode is over."


class StackEnvironments:
    """Makes environments for a trainer: pass `factory` as `environment_factory` and `reward` as the reward function."""

    def __init__(self, session: StackSession, server: str, *, timeout_s: float = 300.0) -> None:
        """`server`: name of the resources server. `timeout_s`: timeout of each of its calls.

        Raises RunError if the stack has no such server, and OperatorError if its tools cannot be methods.
        """
        self._session, self._server, self._timeout_s = session, server, timeout_s
        session.url(server)
        tools = session.run(tools_of(session.stack.clients.client, server))
        methods = {str(tool["name"]): tool_method(tool, StackEnvironment._call_tool) for tool in tools}
        self._type: type[StackEnvironment] = type("StackEnvironment", (StackEnvironment,), methods)

    def factory(self) -> StackEnvironment:
        """Return an environment, which TRL uses for one rollout after the other."""
        return self._type(self._session, self._server, self._timeout_s)

    def reward(self, *, completions: Sequence[Any], environments: Sequence[Any], **_: Any) -> list[float | None]:
        """Return the environment's verdict on each rollout; None, which TRL leaves out, if a server has failed."""
        pairs = zip(environments, completions, strict=True)
        return [environment._verdict_on(completion) for environment, completion in pairs]


class StackEnvironment:
    """One environment at a time, opened by `reset` with a row. Subclasses have a method for each tool.

    TRL offers all public methods except `reset` as tools, so that there are no others.
    """

    def __init__(self, session: StackSession, server: str, timeout_s: float) -> None:
        self._stack, self._server, self._timeout_s = session, server, timeout_s
        self._episode: ServedEpisode | None = None
        self._verdict: EpisodeOutcome | None = None
        """The verdict of an episode that a tool has ended."""

    def reset(self, **columns: Any) -> str | None:
        """Open a session for the row in the column `row`, and return what the environment adds to the prompt.

        Raises OperatorError if there is no row. A failure ends the episode without a reward.
        """
        self._close()
        row = orjson.loads(columns["row"]) if isinstance(columns.get("row"), str) else columns.get("row")
        if not isinstance(row, dict) or not isinstance(row.get("responses_create_params"), dict):
            raise OperatorError("the dataset has no column `row`: make it with environment_rows(FILE)")
        client = self._stack.stack.clients.client
        self._episode = ServedEpisode(client, self._server, row, turn_based=False, timeout_s=self._timeout_s)
        added = self._played(self._episode.open())
        return "\n\n" + "\n\n".join(message["content"] for message in added) if added else None

    def _call_tool(self, name: str, arguments: Json) -> str:
        """Return the text for the model, also about its own mistakes. A failure ends the episode without a reward."""
        if self._episode is None:
            return FAILED
        given = {key: value for key, value in arguments.items() if value is not None}
        if (outcome := self._played(self._episode.call(name, given))) is None:
            return FAILED
        if outcome.done and not outcome.problem:
            self._verdict = outcome
        return outcome.text

    def _verdict_on(self, completion: Any) -> float | None:
        """Return the reward of the episode, and end it; None if a server has failed or masked it."""
        verdict = self._verdict
        if verdict is None and self._episode is not None:
            verdict = self._played(self._episode.finish(_output(completion)))
        self._close()
        return None if verdict is None or verdict.mask else verdict.reward

    def _played(self, call: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a call; None if a server has failed, which ends the episode."""
        try:
            return self._stack.run(call)
        except Failure as failure:
            self._close()
            if failure.kind is FailureKind.MALFORMED_ANSWER:  # every episode would fail
                raise RunError(f"{self._server} cannot be trained on: {failure}") from failure
            return None

    def _close(self) -> None:
        episode, self._episode, self._verdict = self._episode, None, None
        if episode is not None:
            self._stack.run(episode.close())


def environment_rows(path: str | Path, limit: int | None = None) -> Any:
    """Return the rows of a dataset file as a `train_dataset`: their messages as prompts, and the rows as JSON."""
    from datasets import Dataset

    rows = list(itertools.islice(valid_rows(Path(path)), limit))
    # TRL appends what `reset` returns to the last message.
    columns = {"prompt": [messages_of(row) for row in rows], "row": [orjson.dumps(row).decode() for row in rows]}
    return Dataset.from_dict(columns)


def _output(completion: Any) -> list[Json]:
    """Return TRL's completion, which is text or messages, as output items of a Response."""
    output: list[Json] = []
    messages = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else items(completion)
    for message in messages:
        if message.get("role") == "tool":
            call = {"call_id": str(message.get("tool_call_id") or "call"), "output": text_of(message.get("content"))}
            output.append({"type": "function_call_output", **call})
            continue
        if text := text_of(message.get("content")):
            content = [{"type": "output_text", "text": text, "annotations": []}]
            output.append({"type": "message", "role": "assistant", "status": "completed", "content": content})
        for call in items(message.get("tool_calls")):
            called = mapping(call.get("function"))
            arguments = called.get("arguments")
            text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
            call_id = str(call.get("id") or "call")
            output.append({"type": "function_call", "call_id": call_id, "name": called.get("name"), "arguments": text})
    return output


CallTool = Callable[[Any, str, Json], str]
"""Called with the environment, the name of the tool and its arguments; returns the text for the model."""

_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}


def tool_method(schema: Mapping[str, Any], call: CallTool) -> Callable[..., str]:
    """Return a method for a function tool of the Responses API. Raises OperatorError if it cannot be one.

    Types that Python's annotations do not express, such as the bounds of a number, stay with the environment, which
    answers an invalid call with a message for the model.
    """
    name, parameters = str(schema.get("name")), mapping(schema.get("parameters"))
    properties, required = mapping(parameters.get("properties")), parameters.get("required") or []
    if not name.isidentifier() or name.startswith("_") or name in ("reset", "get_reward"):
        raise OperatorError(f"the tool {name!r} cannot be a method of a TRL environment: rename it")

    def method(self: Any, **arguments: Any) -> str:
        return call(self, name, arguments)

    kinds = {argument: annotation_of(mapping(found)) for argument, found in properties.items()}
    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    signature += [
        inspect.Parameter(argument, keyword, annotation=kind)
        if argument in required
        else inspect.Parameter(argument, keyword, annotation=kind, default=mapping(properties[argument]).get("default"))
        for argument, kind in kinds.items()
    ]
    method.__name__ = method.__qualname__ = name
    method.__annotations__ = {**kinds, "return": str}
    method.__signature__ = inspect.Signature(signature, return_annotation=str)  # type: ignore[attr-defined]
    method.__doc__ = _docstring(str(schema.get("description") or name), properties)
    return method


def annotation_of(schema: Mapping[str, Any]) -> Any:
    """Return the Python type of a JSON schema; Any if it has none."""
    kind = schema.get("type")
    if isinstance(values := schema.get("enum"), list) and values:
        return Literal[tuple(values)]
    if isinstance(kind, list) or "anyOf" in schema:
        options = [{"type": each} for each in kind] if isinstance(kind, list) else schema["anyOf"]
        found = [type(None) if each.get("type") == "null" else annotation_of(each) for each in options]
        union: Any = found[0]
        for each in found[1:]:
            union = union | each
        return union
    if kind == "array":
        return list[annotation_of(mapping(schema.get("items")))]  # type: ignore[misc]
    return _TYPES.get(str(kind), Any)


def _docstring(description: str, properties: Mapping[str, Any]) -> str:
    # One line per argument: transformers parses Google's format.
    lines = [f"{name}: {_line(mapping(found).get('description') or name)}" for name, found in properties.items()]
    arguments = "\n\nArgs:\n" + "\n".join(f"    {line}" for line in lines) if lines else ""
    return f"{_line(description)}{arguments}\n\nReturns:\n    The environment's answer."


def _line(text: Any) -> str:
    return " ".join(str(text).split())
