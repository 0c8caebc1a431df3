"""Loads a taskset of the package verifiers (0.4, whose environments are tasksets)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.records.errors import OperatorError
from rollyard.records.optional import load
from rollyard.records.types import Json
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


# Converts conversations between OpenAI Responses items and the messages of verifiers.


def prompt_items(data: Any) -> list[Json]:
    """Return the prompt of a task as Responses items."""
    items: list[Json] = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*items, {"role": "user", "content": data.prompt}]
    for message in data.prompt or []:
        if message.role in ("system", "user", "assistant"):
            items.append({"role": message.role, "content": _content(message)})
    return items


def message_nodes(verifiers: Any, prompt: Sequence[Json], output: Iterable[Json]) -> list[Any]:
    """Return the nodes of a trace: the prompt, then the episode, in which the model's messages are `sampled`."""
    messages: list[tuple[Any, bool]] = []
    for item in prompt:
        kind = {"system": verifiers.SystemMessage, "assistant": verifiers.AssistantMessage}
        made = kind.get(item["role"], verifiers.UserMessage)
        messages.append((made(content=_text(item["content"])), False))
    texts: list[str] = []
    calls: list[Any] = []

    def end_turn() -> None:
        if texts or calls:
            content = "".join(texts) or None
            messages.append((verifiers.AssistantMessage(content=content, tool_calls=list(calls) or None), True))
            texts.clear()
            calls.clear()

    for item in output:
        kind_of_item = item.get("type", "message")
        if kind_of_item == "function_call":
            call = {"id": item["call_id"], "name": str(item.get("name")), "arguments": str(item.get("arguments"))}
            calls.append(verifiers.ToolCall(**call))
        elif kind_of_item == "function_call_output":
            end_turn()
            content = _text(item.get("output"))
            messages.append((verifiers.ToolMessage(tool_call_id=item["call_id"], content=content), False))
        elif kind_of_item == "message" and item.get("role", "assistant") == "assistant":
            texts.append(_text(item.get("content")))
        elif kind_of_item == "message":
            end_turn()
            messages.append((verifiers.UserMessage(content=_text(item.get("content"))), False))
    end_turn()
    return [
        verifiers.MessageNode(parent=number - 1 if number else None, message=message, sampled=sampled)
        for number, (message, sampled) in enumerate(messages)
    ]


def _content(message: Any) -> str | list[Json]:
    if isinstance(message.content, str):
        return message.content
    parts: list[Json] = []
    for part in message.content or []:
        if part.type == "text":
            parts.append({"type": "input_text", "text": part.text})
        else:
            parts.append({"type": "input_image", "image_url": part.image_url.url, "detail": "auto"})
    return parts


def _text(content: object) -> str:
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
