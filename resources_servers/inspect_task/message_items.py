"""Converts between inspect_ai's messages and Responses items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.resources_servers.base import BadTask


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
