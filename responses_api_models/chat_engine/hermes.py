"""The hermes form of tool calls, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, read from a model's text.

For engines that take tokens in but give only text out; where the engine has a tool parser, that one reads.
"""

from __future__ import annotations

import json
import re
import uuid

from rollyard.responses_api_models.think_tags import split_thinking
from rollyard.services.types import Json

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


def read(text: str) -> Json:
    """The assistant message that `text` writes. What cannot be read as a call stays in the content, as it came."""
    message = plain(text)
    content = message["content"]
    calls = [_call(found) for found in _CALL.findall(content)]
    if not calls or None in calls:
        return message
    said = content.partition("<tool_call>")[0]  # as vLLM's own parser has it
    return {**message, "content": said or None, "tool_calls": calls}


def plain(text: str) -> Json:
    """The assistant message without a look for calls: reasoning and content."""
    thought, content = split_thinking(text)
    return {"role": "assistant", "content": content, **({"reasoning_content": thought} if thought else {})}


def _call(text: str) -> Json | None:
    try:
        call = json.loads(text)
        # Spaced as vLLM does it, and as a model writes it.
        name, arguments = call["name"], json.dumps(call["arguments"], ensure_ascii=False)
        f"{name}{arguments}".encode()  # half a surrogate pair could not be sent on
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(name, str):
        return None
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
