"""Parses hermes tool calls, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, from a model's text.

It is used for engines that accept token ids but return plain text, because they have no tool parser.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from rollyard.records.types import Json
from rollyard.responses_api_models.convert.think_tags import split_thinking

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_END = re.compile(r"\s*(?:<\|[^|<>]*\|>\s*)*\Z")
"""Matches the end of a text, which may contain special tokens."""
_DECODER = json.JSONDecoder(strict=False)  # models write line breaks in strings


def read(text: str) -> Json:
    """Parse `text` into an assistant message. What cannot be parsed as a call stays in the content."""
    message = plain(text)
    content: str = message["content"]
    before, opening, rest = content.partition(_OPENING)
    calls: list[Json] = []
    unreadable = ""
    while opening:
        found, rest = _calls(rest)
        calls += found
        # The end of the last object may be missing, but nothing else may be between it and the closing tag.
        inside, rest, opening = _rest_of_tag(rest)
        if not found or inside:
            unreadable += f"{_OPENING}{inside}{_CLOSING}"
    if not calls:
        return message
    return {**message, "content": before + unreadable or None, "tool_calls": calls}  # as in vLLM's own parser


def plain(text: str) -> Json:
    """Parse `text` into an assistant message with reasoning and content, but without tool calls."""
    reasoning, content = split_thinking(text)
    return {"role": "assistant", "content": content, **({"reasoning_content": reasoning} if reasoning else {})}


def _calls(text: str) -> tuple[list[Json], str]:
    """Return the calls at the start of the text, which is after an opening tag, and the text after them."""
    calls: list[Json] = []
    while True:
        start = text.lstrip(" \t\r\n,") if calls else text.lstrip()
        try:
            # Decoded and not searched for the closing tag, which can be part of a string.
            value, end = _DECODER.raw_decode(start)
        except (ValueError, RecursionError):
            return calls, text
        found = [_call(one) for one in (value if isinstance(value, list) else [value])]
        readable = [call for call in found if call is not None]
        if not readable or len(readable) < len(found):
            return calls, text
        calls += readable
        text = start[end:]


def _rest_of_tag(text: str) -> tuple[str, str, str]:
    """Return the text up to the end of a tag, the text after the next opening tag, and that tag if there is one."""
    inside, closing, after = text.partition(_CLOSING)
    if _OPENING in inside or not closing:  # the closing tag is missing
        inside, opening, after = text.partition(_OPENING)
    else:
        _, opening, after = after.partition(_OPENING)
    return "" if _END.match(inside) else inside, after, opening


def _call(call: Any) -> Json | None:
    try:
        name, given = call["name"], call.get("arguments", call.get("parameters"))
        # The same spacing as in vLLM, which models also generate.
        arguments = json.dumps({} if given is None else given, ensure_ascii=False)
        f"{name}{arguments}".encode()  # raises for a lone surrogate, which could not be encoded later
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(name, str):
        return None
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
