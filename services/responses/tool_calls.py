"""Tool calls of the model: as they are recorded, and as an engine can be given them again.

A model can write any name and any arguments. What it wrote stays on the record; a mistake is answered with words. But
engines refuse a conversation in which a call has no name or arguments that are not a JSON object (vLLM parses them for
its chat template), and the rollout would be lost at the next call. So what goes back is put into a form that every
engine takes.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable
from typing import Any

import orjson

from rollyard.services.responses.lenient_json import as_text
from rollyard.services.types import Json

UNNAMED = "unnamed_tool"
INVALID = "invalid_arguments"
"""Under this key the model finds arguments of its own that were not a JSON object."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ODD = re.compile(r"[^A-Za-z0-9_-]+")
_DEEP = 200
"""Brackets above which the nesting is measured."""


def read_name(name: Any) -> str:
    """A call's name as text; empty where the model gave none."""
    return name if isinstance(name, str) else "" if name is None else as_text(name)


def read_arguments(arguments: Any) -> str:
    """A call's arguments as the string both APIs want; some engines hand out the object, or nothing for none."""
    return arguments if isinstance(arguments, str) else "{}" if arguments is None else as_text(arguments)


def read_id(call_id: Any, taken: set[str]) -> str:
    """A call's id, one of its own where the model or its engine gave none or one that is in `taken`."""
    read = call_id if isinstance(call_id, str) else "" if call_id is None else as_text(call_id)
    if not _is_new(read, taken):
        read = f"call_{uuid.uuid4().hex}"
    taken.add(read)
    return read


def read_items(output: list[Json]) -> list[Json]:
    """A turn's items with every call in a readable form: name, arguments and id are texts, and the ids differ."""
    taken: set[str] = set()
    return [_read(item, taken) if item.get("type") == "function_call" else item for item in output]


def _read(item: Json, taken: set[str]) -> Json:
    name, arguments, call_id = item.get("name"), item.get("arguments"), item.get("call_id")
    if isinstance(name, str) and isinstance(arguments, str) and isinstance(call_id, str) and _is_new(call_id, taken):
        taken.add(call_id)
        return item
    read = {"name": read_name(name), "arguments": read_arguments(arguments), "call_id": read_id(call_id, taken)}
    return {**item, **read}


def _is_new(call_id: str, taken: set[str]) -> bool:
    return call_id != "" and call_id not in taken


def offered(tools: Any) -> frozenset[str]:
    """The names of a request's tools, in either API's shape."""
    names: set[str] = set()
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            function = tool.get("function")
            name = function.get("name") if isinstance(function, dict) else tool.get("name")
            names.update([name] if isinstance(name, str) else [])
    return frozenset(names)


def sendable_name(name: str, known: Collection[str] = ()) -> str:
    """A name that every engine takes; those of tools that were offered stay as they are."""
    if _NAME.fullmatch(name) or (name and name in known):
        return name
    return _ODD.sub("_", name)[:64].strip("_") or UNNAMED


def sendable_arguments(arguments: str) -> str:
    """Arguments that every engine takes: those that are not a JSON object stand as text within one."""
    if not arguments or arguments == "{}":
        return arguments
    try:
        value = orjson.loads(arguments)
        if isinstance(value, dict):
            if arguments.count("{") + arguments.count("[") > _DEEP:
                orjson.dumps(value)  # engines' parsers give up in about the same depth
            return arguments
    except (ValueError, TypeError):
        pass
    return orjson.dumps({INVALID: arguments}).decode()


def sendable_items(items: Iterable[Any], known: Collection[str]) -> list[Any]:
    """Input items of Responses with every call in a form that engines take."""
    return [_sendable_item(item, known) if _is_call(item) else item for item in items]


def _is_call(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "function_call"


def _sendable_item(item: Json, known: Collection[str]) -> Json:
    sent = _sendable(item, known)
    return (
        item if sent == (item.get("name"), item.get("arguments")) else {**item, "name": sent[0], "arguments": sent[1]}
    )


def sendable_messages(messages: Iterable[Any], known: Collection[str]) -> list[Any]:
    """Chat messages with every call in a form that engines take."""
    return [_sendable_message(message, known) if _has_calls(message) else message for message in messages]


def _has_calls(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("tool_calls"), list)


def _sendable_message(message: Json, known: Collection[str]) -> Json:
    calls = [_sendable_call(call, known) for call in message["tool_calls"]]
    return (
        message
        if all(a is b for a, b in zip(calls, message["tool_calls"], strict=True))
        else {**message, "tool_calls": calls}
    )


def _sendable_call(call: Any, known: Collection[str]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call  # no call of the model: the engine says what is wrong with it
    sent = _sendable(function, known)
    if sent == (function.get("name"), function.get("arguments")):
        return call
    return {**call, "function": {**function, "name": sent[0], "arguments": sent[1]}}


def _sendable(call: Json, known: Collection[str]) -> tuple[str, str]:
    return (
        sendable_name(read_name(call.get("name")), known),
        sendable_arguments(read_arguments(call.get("arguments"))),
    )
