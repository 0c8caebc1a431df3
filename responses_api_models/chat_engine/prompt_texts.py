"""Visits and rewrites every string in a chat request that becomes part of the prompt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import orjson

from rollyard.records.types import Json

Source = Literal["caller", "model", "schema"]
"""Where a string comes from: the caller, the model in an earlier turn, or a name or schema that programs also read."""
Rewrite = Callable[[str, str, Source], str]
"""Maps the path of a string in the request, the string and its source to the new string."""
_NOT_TEXT = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs", "token_trace"})
"""Keys of a message whose values chat templates do not render."""
_PART_TEXTS = ("text", "refusal", "thinking", "name")
"""Keys that can contain the text of a content part. Parts without any of them are images, audio or files."""
_SOURCES: dict[str, Source] = {"role": "schema", "tools": "schema", "tool_call_id": "model"}
"""Keys of a message whose text does not come from the message's author: for example, the model generates tool call
ids."""
_PROSE = frozenset({"description", "title", "$comment"})
"""Keys of a tool or its JSON schema whose text is read only by the model, not by programs."""

MAX_LENGTH = 128
"""Number of characters at the end of earlier parts that are examined together with the next part of a message."""


def rewritten(body: Json, rewrite: Rewrite) -> Json:
    """Return the body with every string in its messages, tools, documents and template arguments rewritten."""
    return rewritten_tools(_rewritten(body, "messages", rewrite, _message), rewrite)


def rewritten_tools(body: Json, rewrite: Rewrite) -> Json:
    """Rewrite only the tools, documents and template arguments, which precede the conversation."""
    tools = _rewritten(body, "tools", rewrite, lambda tool, path, apply: _nested(tool, path, apply, "schema"))
    body = _rewritten(tools, "documents", rewrite, lambda one, path, apply: _nested(one, path, apply, "caller"))
    arguments = body.get("chat_template_kwargs")
    if not isinstance(arguments, dict):
        return body
    return {**body, "chat_template_kwargs": _nested(arguments, "chat_template_kwargs", rewrite, "caller")}


def _rewritten(body: Json, key: str, rewrite: Rewrite, one: Callable[[Any, str, Rewrite], Any]) -> Json:
    if not isinstance(body.get(key), list):
        return body
    return {**body, key: [one(part, f"{key}[{at}]", rewrite) for at, part in enumerate(body[key])]}


def _message(message: Any, path: str, rewrite: Rewrite) -> Any:
    if not isinstance(message, dict):
        return message
    source: Source = "model" if message.get("role") == "assistant" else "caller"
    result: Json = {}
    for key, value in message.items():
        inside = f"{path}.{key}"
        if key in _NOT_TEXT or value is None:
            result[key] = value
        elif key == "content" and isinstance(value, list):
            result[key] = _parts(value, inside, rewrite, source)
        elif key == "tool_calls" and isinstance(value, list):
            result[key] = [_call(call, f"{inside}[{at}]", rewrite) for at, call in enumerate(value)]
        else:
            result[key] = _nested(value, inside, rewrite, _SOURCES.get(key, source))
    return result


def _parts(parts: list[Any], path: str, rewrite: Rewrite, source: Source) -> list[Any]:
    """Rewrite the parts of a message. Templates concatenate the parts, so a token can span two of them."""
    result: list[Any] = []
    before = ""
    for at, one in enumerate(parts):
        inside = f"{path}[{at}]"
        part = {"type": "text", "text": one} if isinstance(one, str) else one
        known = (key for key in _PART_TEXTS if isinstance(part, dict) and isinstance(part.get(key), str))
        if (key := next(known, None)) is None:
            result.append(part)
            before = ""
            continue
        part = _nested(part, inside, rewrite, source)
        text = part[key]
        if before and rewrite(f"{inside}.{key}", before + text, source) != before + text:
            text = f" {text}"
        result.append({**part, key: text})
        before = (before + text)[-MAX_LENGTH:]
    return result


def _call(call: Any, path: str, rewrite: Rewrite) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    inside, arguments = f"{path}.function", function.get("arguments")
    result = {key: _nested(value, f"{inside}.{key}", rewrite, "model") for key, value in function.items()}
    if isinstance(arguments, str):
        result["arguments"] = _arguments(arguments, f"{inside}.arguments", rewrite)
    others = {
        key: _nested(value, f"{path}.{key}", rewrite, "model") for key, value in call.items() if key != "function"
    }
    return {**others, "function": result}


def _arguments(text: str, path: str, rewrite: Rewrite) -> str:
    """Rewrite the arguments of a tool call, which remain valid JSON if a space is inserted into a string. Engines pass
    decoded values to templates, so characters that are escaped as \\u003c are decoded first.
    """
    if "\\u" in text:
        with contextlib.suppress(ValueError, TypeError):
            plain = orjson.dumps(orjson.loads(text)).decode()
            found = rewrite(path, plain, "model")
            return found if found != plain else text
    return rewrite(path, text, "model")


def _nested(value: Any, path: str, rewrite: Rewrite, source: Source) -> Any:
    if isinstance(value, str):
        return rewrite(path, value, source)
    if isinstance(value, list):
        return [_nested(one, f"{path}[{at}]", rewrite, source) for at, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    result = {}
    for key, one in value.items():
        inner: Source = "caller" if key in _PROSE and isinstance(one, str) else source
        result[rewrite(f"{path}, a key", key, "schema")] = _nested(one, f"{path}.{key}", rewrite, inner)
    return result
