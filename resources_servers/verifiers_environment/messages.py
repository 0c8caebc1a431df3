"""Converts conversations between OpenAI Responses items and the messages of verifiers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rollyard.records.types import Json


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
