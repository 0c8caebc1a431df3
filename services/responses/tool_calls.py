"""Normalizes the model's tool calls for the record, and converts them for requests to an engine.

A model can write any name and any arguments. They are recorded unchanged, and the model receives an error message for
an invalid call. But engines reject a conversation in which a call has no name, or arguments that are not a JSON object
(vLLM parses them for its chat template), so the rollout would fail at the next model call. Calls in requests are
therefore converted so that every engine accepts them.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable
from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.services.responses.response_validity import as_text

UNNAMED = "unnamed_tool"
INVALID = "invalid_arguments"
"""Key under which the model sees its own arguments if they were not a JSON object."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")
_MANY_BRACKETS = 200
"""Number of brackets above which the nesting depth is checked."""


def read_name(name: Any) -> str:
    """Return a call's name as text; empty if the model gave none."""
    return name if isinstance(name, str) else "" if name is None else as_text(name)


def read_arguments(arguments: Any) -> str:
    """Return a call's arguments as the string that both APIs require; some engines return an object or null."""
    return arguments if isinstance(arguments, str) else "{}" if arguments is None else as_text(arguments)


def normalize_calls(message: Json, *, is_delta: bool = False) -> bool:
    """Change a chat message or a delta so that all clients can read its calls; return whether anything was changed.

    `tool_calls` becomes a list of calls, without one that is empty, and arguments become a string. A call of a message
    also gets a name and an id; a delta may continue an earlier one.
    """
    changed = False
    older = message.get("function_call")
    if isinstance(older, dict) and not isinstance(arguments := older.get("arguments", ""), str):
        older["arguments"] = "" if is_delta and arguments is None else read_arguments(arguments)
        changed = True
    if "tool_calls" not in message:
        return changed
    calls = message["tool_calls"]
    if not calls:
        del message["tool_calls"]
        return True
    if not isinstance(calls, list):
        calls = [{"index": 0, **calls} if is_delta and isinstance(calls, dict) else calls]
        changed = True
    taken: set[str] = set()
    normalized = [_normalized_delta(call) if is_delta else _normalized_call(call, taken) for call in calls]
    message["tool_calls"] = normalized
    return changed or any(one is not call for one, call in zip(normalized, calls, strict=True))


def _normalized_call(call: Any, taken: set[str]) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict):
        if all(isinstance(part, str) for part in (call.get("id"), function.get("name"), function.get("arguments"))):
            return call  # type: ignore[no-any-return]
    elif isinstance(call, dict) and isinstance(call.get(str(call.get("type"))), dict):
        return call  # a call of another type, such as `custom`
    call, function = call_function(call)
    normalized = {"name": read_name(function.get("name")), "arguments": read_arguments(function.get("arguments"))}
    kept = {key: value for key, value in call.items() if key not in ("name", "arguments", "input")}
    own = {"id": read_id(call.get("id"), taken), "type": "function", "function": {**function, **normalized}}
    return {**kept, **own}


def _normalized_delta(call: Any) -> Json:
    if not isinstance(call, dict):
        return {"index": 0, "function": {"arguments": as_text(call)}}
    function = call.get("function")
    if isinstance(function, dict) and not isinstance(arguments := function.get("arguments", ""), str):
        return {**call, "function": {**function, "arguments": "" if arguments is None else as_text(arguments)}}
    return call


def call_function(call: Any) -> tuple[Json, Json]:
    """Return a chat call and its function as objects. What has another form is kept as the function's arguments."""
    if not isinstance(call, dict):
        call = {"function": {"arguments": as_text(call)}}
    function = call.get("function") or call.get(str(call.get("type")))
    if not isinstance(function, dict):
        names = call.keys() - {"id", "type", "index"}
        is_flat = isinstance(call.get("name"), str) and names <= {"name", "arguments", "input"}
        function = dict(call) if is_flat else {"arguments": {key: call[key] for key in names}}
        function = {key: function[key] for key in function.keys() - {"id", "type", "index"}}
    if "arguments" not in function and "input" in function:
        function = {**function, "arguments": function["input"]}
    return call, function


def read_id(call_id: Any, taken: set[str]) -> str:
    """Return a call's id, or a new one if it is missing or in `taken`, and add it to `taken`."""
    normalized = call_id if isinstance(call_id, str) else "" if call_id is None else as_text(call_id)
    if not _is_new(normalized, taken):
        normalized = f"call_{uuid.uuid4().hex}"
    taken.add(normalized)
    return normalized


def read_items(output: list[Json]) -> list[Json]:
    """Return a turn's items with normalized calls: name, arguments and id are strings, and the ids are unique."""
    taken: set[str] = set()
    return [_normalize(item, taken) if item.get("type") == "function_call" else item for item in output]


def _normalize(item: Json, taken: set[str]) -> Json:
    name, arguments, call_id = item.get("name"), item.get("arguments"), item.get("call_id")
    if isinstance(name, str) and isinstance(arguments, str) and isinstance(call_id, str) and _is_new(call_id, taken):
        taken.add(call_id)
        return item
    normalized = {"name": read_name(name), "arguments": read_arguments(arguments), "call_id": read_id(call_id, taken)}
    return {**item, **normalized}


def _is_new(call_id: str, taken: set[str]) -> bool:
    return call_id != "" and call_id not in taken


def offered(tools: Any) -> frozenset[str]:
    """Return the names of a request's tools, which may have the format of either API."""
    names: set[str] = set()
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            function = tool.get("function")
            name = function.get("name") if isinstance(function, dict) else tool.get("name")
            names.update([name] if isinstance(name, str) else [])
    return frozenset(names)


def sendable_name(name: str, known: Collection[str] = ()) -> str:
    """Return a name that every engine accepts; names of `known` tools stay unchanged."""
    if _NAME.fullmatch(name) or (name and name in known):
        return name
    return _INVALID_CHARACTERS.sub("_", name)[:64].strip("_") or UNNAMED


def sendable_arguments(arguments: str) -> str:
    """Return arguments that every engine accepts. Invalid arguments are wrapped in a JSON object, as a string."""
    if not arguments or arguments == "{}":
        return arguments
    if not arguments.encode("utf-8", "replace").strip():
        return "{}"  # with which the tool was called
    try:
        value = orjson.loads(arguments)
        if isinstance(value, dict):
            if arguments.count("{") + arguments.count("[") > _MANY_BRACKETS:
                orjson.dumps(value)  # engines' parsers fail at about the same depth
            return arguments
    except (ValueError, TypeError):
        pass
    return orjson.dumps({INVALID: arguments}).decode()


def sendable_items(items: Iterable[Any], known: Collection[str]) -> list[Any]:
    """Return Responses input items, with every call converted so that engines accept it."""
    return [
        _sendable(item, known) if isinstance(item, dict) and item.get("type") == "function_call" else item
        for item in items
    ]


def sendable_messages(messages: Iterable[Any], known: Collection[str]) -> list[Any]:
    """Return chat messages, with every call converted so that engines accept it."""
    sent: list[Any] = []
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if isinstance(calls, list):
            message = {**message, "tool_calls": [_sendable_call(call, known) for call in calls]}
        sent.append(message)
    return sent


def _sendable_call(call: Any, known: Collection[str]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call  # not a call of the model: the engine reports what is wrong with it
    sent = _sendable(function, known)
    return call if sent is function else {**call, "function": sent}


def _sendable(call: Json, known: Collection[str]) -> Json:
    name, arguments = call.get("name"), call.get("arguments")
    sent = (sendable_name(read_name(name), known), sendable_arguments(read_arguments(arguments)))
    return call if sent == (name, arguments) else {**call, "name": sent[0], "arguments": sent[1]}
