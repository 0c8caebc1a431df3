"""Reads responses of engines: tells a turn of the model from the response of a broken engine, and repairs tool calls.

Calls are normalised, so that clients can read them and engines accept them in the next request. These rules decide what
a turn of the model is:

1. A generation that the engine aborted (finish_reason abort, error, timeout ...; status failed, cancelled) is a failed
   attempt, regardless of its content. So is a response that reports an error, with any status and any content.
2. A response with content (text, reasoning, a refusal, a call) is a turn of the model.
3. A response without content is a turn only if the engine confirms it: it ended properly (stop, length) and counts at
   least one generated token, such as the end-of-turn token; or a content filter withheld it. White space counts as
   text if the generation ended properly.
4. A response whose tool call is lost is a failed attempt: its finish_reason reports a call that it does not contain, or
   the call is in a choice that nobody asked for.
5. Every other response is a failed attempt: no choices, no message, no finish_reason and no text, `output: []` of a
   response that is still in progress, a stream that ends before any content.

The caller retries failed attempts and never scores them.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Collection, Iterable
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json, json_kind, mapping
from rollyard.services.http.request import with_server

_HALF_PAIR = re.compile("[\ud800-\udfff]")


def loads(text: bytes) -> Any:
    """Parse a JSON value. Raises orjson.JSONDecodeError, which is a ValueError, for invalid JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as strict:
        try:
            return _clean(json.loads(text.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            raise strict from None


def as_text(value: Any) -> str:
    """Return a value as JSON text, or a placeholder if it is nested too deeply to be written."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return '"(nested too deeply)"'


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF_PAIR.sub("\ufffd", value)
    if isinstance(value, dict):
        # NaN in a call's arguments is an invalid tool call by the model; elsewhere it is an engine error.
        return {
            _clean(key): _arguments_text(item) if key == "arguments" else _clean(item) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not JSON")
    return value


def _arguments_text(arguments: Any) -> Any:
    if isinstance(arguments, str):
        return _clean(arguments)
    return _HALF_PAIR.sub("\ufffd", json.dumps(arguments, ensure_ascii=False))


_ABORTED = re.compile(r"abort|error|cancel|fail|time_?(d_?)?out|disconnect|overload|unavailable|insufficient", re.I)
"""Matches the finish reasons of an aborted generation, which is not a turn. A weight update may abort generations."""
_PROPER = frozenset({"stop", "length", "eos", "eos_token", "end_turn", "stop_sequence", "max_tokens", "model_length"})
_WITHHELD = "content_filter"
_USUAL_ENDS = _PROPER | {"tool_calls", "completed", "incomplete"}
_CALLED = re.compile(r"(tool|function)_?(call|use)", re.I)
"""Matches the finish reasons of a turn that ends with tool calls."""
_CALL_PARTS = frozenset({"tool_use", "tool_call", "function_call"})
"""Types of the parts of a message by which other APIs call a tool."""
_CONTENT_KEYS = (
    *("reasoning", "reasoning_content", "reasoning_details", "refusal"),
    *("tool_calls", "function_call", "audio"),
)
_UNFINISHED = frozenset({"failed", "in_progress", "queued", "cancelled", "expired"})
_CALLS = re.compile(r"_call$|_call_output$|^mcp_|^compaction$|^program")
"""Types of items that always count as content: tool calls and their outputs, including the endpoint's own tools."""
_TEXTS = frozenset({"output_text", "text", "input_text", None})
"""Types of the parts of a message that hold text; None: the part has no type."""
_ROLES = frozenset({"assistant", "user", "system", "developer", "tool", None})
_MESSAGE_PARTS = frozenset({"role", "content", "text", "message", "error"})
"""Keys by which an item of an unknown type may hold the answer, or says that there is none."""
_OUTSIDE = frozenset({"text", "tool_calls", "function_call"})
"""Keys of other APIs' messages that hold what a Response has in `content`, and in items of its own."""
_ELSEWHERE = frozenset({"choices", "content", "output_text", "message"})
"""The same of a whole response: what an answer with an empty output may hold outside of it."""
_INCOMPLETE = frozenset({"max_output_tokens", _WITHHELD})


def malformed(what: str, response: Any) -> Failure:
    """Return the Failure for a response that cannot be parsed, with an excerpt of the response."""
    return Failure(FailureKind.MALFORMED_ANSWER, f"the endpoint's response {what}: {str(response)[:300]}")


def check_finish(reason: Any) -> None:
    """Raise Failure upstream_error for a generation that the engine aborted."""
    if reason is None or (isinstance(reason, str) and reason in _USUAL_ENDS):
        return
    if _ABORTED.search(str(reason)):
        detail = f"the engine aborted the generation (finish_reason {str(reason)[:100]!r})"
        raise Failure(FailureKind.UPSTREAM_ERROR, detail)


def check_error(part: Json) -> None:
    """Raise Failure upstream_error for a response, or one of its choices, that reports an error."""
    error = part.get("error")
    if not error and part.get("object") != "error":
        return
    detail = error.get("message") or error if isinstance(error, dict) else error or part.get("message")
    raise Failure(FailureKind.UPSTREAM_ERROR, f"the endpoint's response reports an error: {str(detail)[:300]}")


def check_empty(finish_reason: Any, tokens: Any, shown: Any, *, blank: bool = False) -> None:
    """Raise Failure malformed_answer unless the engine confirms that a response without content is a turn.

    `tokens`: the number of generated tokens that the engine reports. `blank`: the text is white space, which means that
    tokens were generated.
    """
    if finish_reason == _WITHHELD:
        return
    if not isinstance(finish_reason, str) or finish_reason not in _PROPER:
        raise malformed(f"has no content and did not end properly (finish_reason {str(finish_reason)[:100]!r})", shown)
    if not blank and not (isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0):
        raise malformed("has no content, and its usage reports no generated tokens", shown)


def ends_with_calls(finish_reason: Any) -> bool:
    """Return whether a generation with this finish_reason ended with tool calls."""
    return isinstance(finish_reason, str) and _CALLED.search(finish_reason) is not None


def calls_of(message: Json) -> list[Any]:
    """Return the tool calls of a chat message or a delta, also one in the older field `function_call`.

    Raises Failure if the content holds a call, where no client looks for one.
    """
    if isinstance(content := message.get("content"), list) and any(
        isinstance(kind := mapping(part).get("type"), str) and kind in _CALL_PARTS for part in content
    ):
        raise malformed("has a tool call in its content instead of in tool_calls", message)
    calls, older = message.get("tool_calls"), message.get("function_call")
    if calls:
        return calls if isinstance(calls, list) else [calls]
    return [{"type": "function", "function": older}] if older else []


def lost_call(finish_reason: Any, shown: Any) -> Failure:
    """Return the Failure for a tool call that the response does not contain, or contains in another choice."""
    if finish_reason is not None:
        return malformed(f"ended with {str(finish_reason)[:100]!r}, but contains no tool call", shown)
    return malformed("has a tool call in a second choice, although one choice was requested", shown)


def first_choice(response: Json, requested: int = 1) -> tuple[Json, Json]:
    """Return the first choice of a chat completion and its message. Raises Failure if it is missing or aborted, or if
    a tool call is lost. `requested`: the number of choices that the request asked for.
    """
    check_error(response)
    choices = response.get("choices")
    if not choices or not isinstance(choices, list):
        raise malformed("has no choices", response)
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise malformed("has a choice without a message", response)
    check_error(choice)
    finish_reason = choice.get("finish_reason")
    check_finish(finish_reason)
    if not calls_of(message) and ends_with_calls(finish_reason):
        raise lost_call(finish_reason, response)
    if len(choices) > 1:
        others = [calls_of(mapping(mapping(other).get("message"))) for other in choices[1:]]
        if requested == 1 and any(others):
            raise lost_call(None, response)
    return choice, message


def check_completion(response: Json, requested: int = 1) -> tuple[Json, Json]:
    """Return the first choice of a chat completion and its message. Raises Failure if the rules above reject it."""
    choice, message = first_choice(response, requested)
    if not has_content(message):
        ids = choice.get("token_ids") or message.get("generation_token_ids")
        tokens = len(ids) if isinstance(ids, list) else mapping(response.get("usage")).get("completion_tokens")
        check_empty(choice.get("finish_reason"), tokens, response, blank=bool(message.get("content")))
    return choice, message


def has_content(message: Json) -> bool:
    content = message.get("content")
    if isinstance(content, str):
        if content.strip():
            return True
    elif isinstance(content, list) and any(isinstance(part, dict) and part.get("text") for part in content):
        return True
    if isinstance(calls := message.get("tool_calls"), list) and calls:
        return True
    values = (message.get(key) for key in _CONTENT_KEYS)
    return any(value.strip() if isinstance(value, str) else value for value in values)


def check_response(response: Json) -> None:
    """Check a complete Response. Raises Failure if the rules of this module reject it."""
    status, output = response.get("status"), response.get("output")
    if isinstance(status, str) and status in _UNFINISHED:
        error = response.get("error")
        reason = (error.get("message") if isinstance(error, dict) else error) or "no reason given"
        raise Failure(FailureKind.UPSTREAM_ERROR, f"the response has the status {status}: {reason}"[:500])
    check_error(response)
    check_finish(status)
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise malformed("has an output that is not a list of items", {key: response[key] for key in sorted(response)})
    check_finish(response.get("finish_reason"))
    _check_calls(response)
    reason = mapping(response.get("incomplete_details")).get("reason")
    check_finish(reason)
    for item in output:
        if _has_item_content(item):
            return
    finish_reason: Any = status
    if status == "completed":
        finish_reason = "stop"
    elif status == "incomplete" and isinstance(reason, str) and reason in _INCOMPLETE:
        finish_reason = "length" if reason != _WITHHELD else _WITHHELD
    ids = output[-1].get("generation_token_ids") if output else None
    tokens = len(ids) if isinstance(ids, list) else mapping(response.get("usage")).get("output_tokens")
    check_empty(finish_reason, tokens, response, blank=any(_texts(item) for item in output))


def _check_calls(response: Json) -> None:
    """Raise Failure malformed_answer for a Response that reports a tool call and has none."""
    if ends_with_calls(finish_reason := response.get("finish_reason")) and not any(
        isinstance(item, dict) and _CALLS.search(str(item.get("type"))) for item in response["output"]
    ):
        raise lost_call(finish_reason, response)


def check_graded(response: Any) -> None:
    """Raise Failure bad_request unless a request's `response` is a finished Response that can be read.

    An episode may end without text, so an empty output is one, unless the Response says that it is incomplete.
    """
    if problem := _why_not_graded(response):
        expected = 'a finished OpenAI Response, {"object": "response", "status": "completed", "output": [...]}'
        raise Failure(FailureKind.BAD_REQUEST, f"`response` {problem}; expected {expected}")


def _why_not_graded(response: Any) -> str:
    if not isinstance(response, dict):
        return "is missing" if response is None else f"is {json_kind(response)}"
    if response.get("object") not in (None, "response"):
        return f"is the object {str(response['object'])[:100]!r}"
    status, output = response.get("status"), response.get("output")
    reason = mapping(response.get("incomplete_details")).get("reason")
    if status not in (None, "completed", "incomplete"):
        return f"has the status {str(status)[:100]!r}"
    if not isinstance(output, list):
        kind = "a chat completion, with `choices`" if "choices" in response else json_kind(output)
        return "has no `output`" if output is None and "choices" not in response else f"has as its output {kind}"
    if not output and (elsewhere := sorted(key for key in _ELSEWHERE if response.get(key))):
        return f"has an empty output, but `{elsewhere[0]}`"
    try:
        check_error(response)
        check_finish(response.get("finish_reason"))
        check_finish(reason)
        _check_calls(response)
    except Failure as failure:
        return f"is of a failed generation: {failure.problem.detail}"
    if status == "incomplete" and not output:
        tokens = mapping(response.get("usage")).get("output_tokens")
        is_turn = (isinstance(tokens, int) and tokens > 0) or reason == _WITHHELD
        return "" if is_turn else "is incomplete and has no output"
    if unreadable := next((why for item in output if (why := why_unreadable(item))), ""):
        return unreadable
    if status is None and any(item.get("status") == "in_progress" for item in output):
        return "has an item that is still in progress"
    return ""


def why_unreadable(item: Any) -> str:
    """Return why an item of a conversation, which may hold the model's answer, cannot be read; empty if it can."""
    if not isinstance(item, dict) or not item:
        return f"has an item that is {'empty' if item == {} else json_kind(item)}"
    kind = item.get("type")
    if not isinstance(kind, str | None):
        return f"has an item whose type is {json_kind(kind)}"
    if not _is_message(item):
        odd = kind != "reasoning" and not _CALLS.search(kind or "") and item.keys() & _MESSAGE_PARTS
        return f"has an item of the type {kind!r:.100} with {'`, `'.join(sorted(odd)).join('``')}" if odd else ""
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str | None) or role not in _ROLES:
        return f"has a message with the role {str(role)[:100]!r}"
    if content is None:
        return "has a message with text or tool calls, but without `content`" if item.keys() & _OUTSIDE else ""
    if not isinstance(content, str | list):
        return f"has a message whose content is {json_kind(content)}"
    return next((why for part in content if (why := _why_unreadable_part(part))), "")


def _why_unreadable_part(part: Any) -> str:
    if isinstance(part, str):
        return ""
    if not isinstance(part, dict):
        return f"has a message with a part that is {json_kind(part)}"
    kind = part.get("type")
    if not isinstance(kind, str | None):
        return f"has a message with a part whose type is {json_kind(kind)}"
    if kind not in _TEXTS:
        is_lost = kind in _CALL_PARTS or ("text" in part and kind not in ("reasoning_text", "summary_text"))
        return f"has a message whose content has a part of the type {kind!r:.100}" if is_lost else ""
    text = part.get("text", ...)
    return "" if isinstance(text, str | None) else f"has a message with a part of the type {kind!r} without text"


def _is_message(item: Json) -> bool:
    return item.get("type") in (None, "message")


def is_answer(item: Json) -> bool:
    """Return whether an item of the output is a message of the model. Some servers leave out its type and its role."""
    return _is_message(item) and item.get("role") in (None, "assistant")


def message_text(item: Json) -> str:
    """Return the text of a message, without refusals. Its parts may have the type of a prompt's, or none."""
    content = item.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") in _TEXTS else part for part in content]
    return "".join([text for text in texts if isinstance(text, str)])


def _has_item_content(item: Json) -> bool:
    kind = item.get("type")
    if kind == "function_call" or (isinstance(kind, str) and _CALLS.search(kind)):
        return True
    return bool(item.get("encrypted_content")) or any(text.strip() for text in _texts(item))


def _texts(item: Json) -> list[str]:
    parts: list[Any] = []
    for group in (item.get("content"), item.get("summary")):
        parts += [{"text": group}] if isinstance(group, str) else group if isinstance(group, list) else []
    texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str) and text]


def read_answer(body: bytes, server: str) -> Json:
    """Parse the JSON object in the response of `server`. Raises Failure malformed_answer with the server's name."""
    try:
        value = loads(body)
    except ValueError as error:
        excerpt = body[:200].decode("utf-8", "replace")
        detail = f"the response is not JSON ({error}): {excerpt!r}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=server) from error
    if not isinstance(value, dict):
        detail = f"the response is a JSON {type(value).__name__}; expected a JSON object"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=server)
    return value


def read_response(body: bytes, server: str) -> Json:
    """Parse the Response object from the model server `server`.

    Raises Failure, with the server's name, unless it is a turn of the model. A model server from a different framework
    may forward the output of a broken engine.
    """
    response = read_answer(body, server)
    try:
        check_response(response)
    except Failure as failure:
        raise with_server(failure, server) from failure
    return response


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
    if (name and name in known) or _NAME.fullmatch(name):
        return name
    return _INVALID_CHARACTERS.sub("_", name)[:64].strip("_") or UNNAMED


def sendable_arguments(arguments: str) -> str:
    """Return arguments that every engine accepts. Invalid arguments are wrapped in a JSON object, as a string."""
    if not arguments or arguments == "{}":
        return arguments
    try:
        value = orjson.loads(arguments)
        if isinstance(value, dict):
            if len(arguments) > _MANY_BRACKETS and arguments.count("{") + arguments.count("[") > _MANY_BRACKETS:
                orjson.dumps(value)  # engines' parsers fail at about the same depth
            return arguments
    except (ValueError, TypeError):
        if not arguments.encode("utf-8", "replace").strip():
            return "{}"  # with which the tool was called
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
    sent_name, sent_arguments = sendable_name(read_name(name), known), sendable_arguments(read_arguments(arguments))
    if sent_name == name and sent_arguments == arguments:
        return call
    return {**call, "name": sent_name, "arguments": sent_arguments}
