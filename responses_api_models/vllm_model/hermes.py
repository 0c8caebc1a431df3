"""The hermes form of tool calls, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, read from a model's text.

For engines that take tokens in but give only text out; where the engine has a tool parser, that one reads.
"""

from __future__ import annotations

import re
import uuid

import orjson

from services.types import Json

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


def read(text: str) -> Json:
    """The assistant message that `text` writes. What cannot be read as a call stays in the content, as it came."""
    message = plain(text)
    content = message["content"]
    calls = [_call(found) for found in _CALL.findall(content)]
    if not calls or None in calls:
        return message
    said = _CALL.sub("", content).strip()
    return {**message, "content": said or None, "tool_calls": calls}


def plain(text: str) -> Json:
    """The assistant message without a look for calls: reasoning and content."""
    if thought := _THOUGHT.match(text):
        return {"role": "assistant", "reasoning_content": thought[1].strip(), "content": text[thought.end() :]}
    return {"role": "assistant", "content": text}


def _call(text: str) -> Json | None:
    try:
        call = orjson.loads(text)
        name, arguments = call["name"], call.get("arguments", {})
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(name, str):
        return None
    function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
