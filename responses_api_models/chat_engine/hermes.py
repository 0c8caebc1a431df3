"""Parses hermes tool calls, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, from a model's text.

It is used for engines that accept token ids but return plain text, because they have no tool parser.
"""

from __future__ import annotations

import json
import re
import uuid

from rollyard.responses_api_models.think_tags import split_thinking
from rollyard.services.types import Json

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


def read(text: str) -> Json:
    """Parse `text` into an assistant message. Tool calls that cannot be parsed stay in the content unchanged."""
    message = plain(text)
    content = message["content"]
    calls = [_call(found) for found in _CALL.findall(content)]
    if not calls or None in calls:
        return message
    content_before = content.partition("<tool_call>")[0]  # as in vLLM's own parser
    return {**message, "content": content_before or None, "tool_calls": calls}


def plain(text: str) -> Json:
    """Parse `text` into an assistant message with reasoning and content, but without tool calls."""
    reasoning, content = split_thinking(text)
    return {"role": "assistant", "content": content, **({"reasoning_content": reasoning} if reasoning else {})}


def _call(text: str) -> Json | None:
    try:
        call = json.loads(text)
        # The same spacing as in vLLM, which models also generate.
        name, arguments = call["name"], json.dumps(call["arguments"], ensure_ascii=False)
        f"{name}{arguments}".encode()  # raises for a lone surrogate, which could not be encoded later
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(name, str):
        return None
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
