"""The texts of a chat request that end up in the prompt, each with its place, to be looked at and rewritten."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import orjson

from rollyard.services.types import Json

Source = Literal["caller", "model", "schema"]
"""Who a text comes from: the caller, the model in an earlier turn, or a name or schema, which programs read, too."""
Rewrite = Callable[[str, str, Source], str]
"""Called with a place, the text there and its source; returns the text as it is to stand there."""
_NOT_TEXT = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs", "token_trace"})
"""Keys of a message whose values no template writes."""
_PART_TEXTS = ("text", "refusal", "thinking", "name")
"""Where the text of a message's part is; parts without one are pictures, sounds and files."""
_SOURCES: dict[str, Source] = {"role": "schema", "tools": "schema", "tool_call_id": "model"}
"""Keys of a message whose text does not come from who speaks; a call's id is the model's, as on the call itself."""
_PROSE = frozenset({"description", "title", "$comment"})
"""Keys of a tool or its JSON schema whose text only the model reads."""

LONGEST = 128
"""Letters of earlier parts that are looked at together with the next part of a message."""


def rewritten(body: Json, rewrite: Rewrite) -> Json:
    """The body with every text of its messages, tools and documents rewritten. What stays the same is shared."""
    return rewritten_tools(_rewritten(body, "messages", rewrite, _message), rewrite)


def rewritten_tools(body: Json, rewrite: Rewrite) -> Json:
    """The same of the tools, documents and arguments of the template alone, which stand before the conversation."""
    tools = _rewritten(body, "tools", rewrite, lambda tool, place, apply: _nested(tool, place, apply, "schema"))
    body = _rewritten(tools, "documents", rewrite, lambda one, place, apply: _nested(one, place, apply, "caller"))
    arguments = body.get("chat_template_kwargs")
    if not isinstance(arguments, dict):
        return body
    return {**body, "chat_template_kwargs": _nested(arguments, "chat_template_kwargs", rewrite, "caller")}


def _rewritten(body: Json, key: str, rewrite: Rewrite, one: Callable[[Any, str, Rewrite], Any]) -> Json:
    if not isinstance(body.get(key), list):
        return body
    return {**body, key: [one(part, f"{key}[{at}]", rewrite) for at, part in enumerate(body[key])]}


def _message(message: Any, place: str, rewrite: Rewrite) -> Any:
    if not isinstance(message, dict):
        return message
    source: Source = "model" if message.get("role") == "assistant" else "caller"
    made: Json = {}
    for key, value in message.items():
        inside = f"{place}.{key}"
        if key in _NOT_TEXT or value is None:
            made[key] = value
        elif key == "content" and isinstance(value, list):
            made[key] = _parts(value, inside, rewrite, source)
        elif key == "tool_calls" and isinstance(value, list):
            made[key] = [_call(call, f"{inside}[{at}]", rewrite) for at, call in enumerate(value)]
        else:
            made[key] = _nested(value, inside, rewrite, _SOURCES.get(key, source))
    return made


def _parts(parts: list[Any], place: str, rewrite: Rewrite, source: Source) -> list[Any]:
    """The parts of a message. Templates join them, so that a text may begin in one and end in the next."""
    made: list[Any] = []
    before = ""
    for at, one in enumerate(parts):
        inside = f"{place}[{at}]"
        part = {"type": "text", "text": one} if isinstance(one, str) else one
        known = (key for key in _PART_TEXTS if isinstance(part, dict) and isinstance(part.get(key), str))
        if (key := next(known, None)) is None:
            made.append(part)
            before = ""
            continue
        part = _nested(part, inside, rewrite, source)
        text = part[key]
        if before and rewrite(f"{inside}.{key}", before + text, source) != before + text:
            text = f" {text}"
        made.append({**part, key: text})
        before = (before + text)[-LONGEST:]
    return made


def _call(call: Any, place: str, rewrite: Rewrite) -> Any:
    """A call of the model."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    inside, arguments = f"{place}.function", function.get("arguments")
    written = {key: _nested(value, f"{inside}.{key}", rewrite, "model") for key, value in function.items()}
    if isinstance(arguments, str):
        written["arguments"] = _arguments(arguments, f"{inside}.arguments", rewrite)
    others = {
        key: _nested(value, f"{place}.{key}", rewrite, "model") for key, value in call.items() if key != "function"
    }
    return {**others, "function": written}


def _arguments(text: str, place: str, rewrite: Rewrite) -> str:
    """Arguments are JSON, in which a text stays JSON when a space is put into it. Engines hand templates what it holds,
    so that letters written as \\u003c count, too.
    """
    if "\\u" in text:
        with contextlib.suppress(ValueError, TypeError):
            plain = orjson.dumps(orjson.loads(text)).decode()
            found = rewrite(place, plain, "model")
            return found if found != plain else text
    return rewrite(place, text, "model")


def _nested(value: Any, place: str, rewrite: Rewrite, source: Source) -> Any:
    if isinstance(value, str):
        return rewrite(place, value, source)
    if isinstance(value, list):
        return [_nested(one, f"{place}[{at}]", rewrite, source) for at, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    made = {}
    for key, one in value.items():
        inner: Source = "caller" if key in _PROSE and isinstance(one, str) else source
        made[rewrite(f"{place}, a key", key, "schema")] = _nested(one, f"{place}.{key}", rewrite, inner)
    return made
