"""Converts requests and responses between the Responses and Chat Completions APIs.

    request_to_chat            Responses create request -> chat create request   } a model server in front of
    chat_to_response           chat completion -> Response                       } a chat engine
    chat_request_to_responses  chat create request -> Responses create request   } a chat client in front of
    response_to_chat           Response -> chat completion                       } any model server

One model turn is one assistant message in Chat Completions, and several items in Responses:

    message.reasoning_content / .reasoning   <->  {"type": "reasoning", "summary": [...]}
    message.content                          <->  {"type": "message", "role": "assistant", "content": [output_text]}
    message.tool_calls[i]                    <->  {"type": "function_call", "call_id", "name", "arguments"}
    {"role": "tool", "tool_call_id"}         <->  {"type": "function_call_output", "call_id", "output"}

Fields that neither API defines are copied unchanged. The model's output is not validated: tool arguments remain the
string that the model generated, even if it is not JSON.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_types import TokenHistory
from rollyard.records.types import TOKEN_FIELDS, Json
from rollyard.services.responses.response_validity import (
    call_function,
    calls_of,
    check_completion,
    check_response,
    malformed,
    read_arguments,
    read_id,
    read_name,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The variant of Chat Completions that an engine expects (see ChatEngineSettings). The defaults suit vLLM."""

    developer_as_system: bool = True
    reasoning_fields: tuple[str, ...] = ("reasoning_content", "reasoning")
    think_tags: bool = False
    max_tokens_field: str = "max_tokens"
    send_token_ids: bool = False


def unconvertible(where: str, found: str) -> Failure:
    return Failure(FailureKind.BAD_REQUEST, f"{where}: {found}")


def check_depth(value: Any, where: str) -> None:
    """Raise Failure bad_request for what orjson has read but, from about 250 levels on, does not write."""
    try:
        orjson.dumps([[[[value]]]])  # a request to an engine has some levels more
    except TypeError as error:
        raise unconvertible(where, f"nested too deeply ({error}); expected at most about 240 levels") from error


STATEFUL = ("previous_response_id", "conversation", "prompt", "background")
"""Fields of a Responses create request that refer to something that the server would have to store."""
_CONVERTED = (
    {"input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning", "max_output_tokens"}
    | {"top_logprobs", "include", "metadata", "stream", "stream_options"}
    | set(STATEFUL)
)
_CHAT_CONVERTED = (
    {"messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "response_format", "reasoning_effort"}
    | {"verbosity", "logprobs", "top_logprobs", "n", "stream", "stream_options"}
)  # fmt: skip
_DEFAULT = Dialect()


class _Rule(NamedTuple):
    kinds: tuple[type, ...]
    fields: Mapping[str, _Rule] = MappingProxyType({})
    each: _Rule | None = None


_NAMES = {str: "text", list: "a list", dict: "an object", int: "a number"}
_OBJECT, _STRING = _Rule((dict,)), _Rule((str,))
_COMMON = {
    "tools": _Rule((list,), each=_Rule((dict,), {"function": _OBJECT})),
    "tool_choice": _Rule((str, dict), {"function": _OBJECT, "allowed_tools": _OBJECT}),
    "metadata": _OBJECT,
    "stream_options": _OBJECT,
    "chat_template_kwargs": _OBJECT,
    "top_logprobs": _Rule((int,)),
}
_RESPONSES_REQUEST = _Rule(
    (dict,),
    {
        **_COMMON,
        "input": _Rule((str, list)),
        "instructions": _STRING,
        "include": _Rule((list,), each=_STRING),
        "text": _Rule((dict,), {"format": _OBJECT}),
        "reasoning": _Rule((dict,), {"effort": _STRING}),
    },
)
_CHAT_REQUEST = _Rule(
    (dict,),
    {
        **_COMMON,
        "messages": _Rule((list,), each=_Rule((dict,), {"tool_calls": _Rule((list,), each=_OBJECT)})),
        "response_format": _Rule((dict,), {"json_schema": _OBJECT}),
        "reasoning_effort": _STRING,
    },
)
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def check_responses_request(request: Json) -> None:
    """Check the types and token limits of a Responses create request. Raises Failure bad_request if one is invalid.

    Only fields whose type the code relies on are checked. Unknown fields are accepted, values are validated by the
    engine, and a null field counts as absent.
    """
    _check(request, _RESPONSES_REQUEST, "")
    check_limits(request)


def check_chat_request(request: Json) -> None:
    _check(request, _CHAT_REQUEST, "")
    check_limits(request)


def check_limits(request: Json) -> None:
    """Raises Failure bad_request for a limit below 1, which engines reject like a prompt that is too long."""
    for name in _LIMITS:
        value = request.get(name)
        if isinstance(value, int | float) and value < 1:
            raise unconvertible(name, f"found {value}; expected at least 1, or no limit")


def _check(value: Any, rule: _Rule, where: str) -> None:
    if not issubclass(type(value), rule.kinds):
        required = " or ".join(_NAMES[kind] for kind in rule.kinds)
        raise unconvertible(where, f"found {str(value)[:100]!r} ({type(value).__name__}); expected {required}")
    if rule.each is not None:
        for index, one in enumerate(value):
            _check(one, rule.each, f"{where}[{index}]")
    elif rule.fields and isinstance(value, dict):
        for name, inner in rule.fields.items():
            if (found := value.get(name)) is not None:
                _check(found, inner, f"{where}.{name}" if where else name)


def request_to_chat(request: Json, dialect: Dialect = _DEFAULT) -> Json:
    refuse_state(request)
    conversation = request.get("input")
    if isinstance(conversation, str):
        messages: list[Json] = [{"role": "user", "content": conversation}]
    elif isinstance(conversation, list):
        messages = to_messages(conversation, dialect)
    else:
        raise unconvertible("input", f"found {type(conversation).__name__}; expected text or a list of items")
    if instructions := request.get("instructions"):
        messages.insert(0, {"role": "system", "content": instructions})
    body = {key: value for key, value in request.items() if key not in _CONVERTED and value is not None}
    body["messages"] = messages
    if body.get("truncation") == "disabled":
        del body["truncation"]
    if tools := request.get("tools"):
        body["tools"] = [_chat_tool(tool, index) for index, tool in enumerate(tools)]
        if choice := request.get("tool_choice"):
            body["tool_choice"] = choice if isinstance(choice, str) else _chat_choice(choice)
        if (parallel := request.get("parallel_tool_calls")) is not None:
            body["parallel_tool_calls"] = parallel
    if (limit := request.get("max_output_tokens")) is not None:
        body[dialect.max_tokens_field] = limit
    text = request.get("text") or {}
    text_format = text.get("format") or {}
    if text_format.get("type") == "json_schema":
        schema = {key: value for key, value in text_format.items() if key != "type" and value is not None}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif text_format and text_format.get("type") != "text":
        body["response_format"] = text_format
    if text.get("verbosity"):
        body["verbosity"] = text["verbosity"]
    if (reasoning := request.get("reasoning")) and (effort := reasoning.get("effort")):
        body["reasoning_effort"] = effort
    if wants_logprobs(request):
        body["logprobs"] = True
        body["top_logprobs"] = request.get("top_logprobs") or 0
    if metadata := request.get("metadata"):
        body["metadata"] = metadata
        apply_metadata(body)
    return body


def refuse_state(request: Json) -> None:
    for name in STATEFUL:
        if request.get(name):
            advice = "send the complete conversation as `input`"
            raise unconvertible(name, f"this server does not store conversations; {advice}")


def refuse_logprobs(request: Json, server: str) -> None:
    if wants_logprobs(request):
        name = "top_logprobs" if request.get("top_logprobs") else "include"
        raise unconvertible(name, f"{server} has no log-probabilities: its model is a program; remove the field")


def wants_logprobs(request: Json) -> bool:
    include = request.get("include")  # of a chat request, whose own fields have no such name, it can be anything
    listed = isinstance(include, list) and "message.output_text.logprobs" in include
    return bool(request.get("top_logprobs")) or listed


def apply_metadata(body: Json) -> None:
    """Merge NeMo Gym's `metadata.extra_body` and `metadata.chat_template_kwargs` (JSON strings) into a chat request.

    The request's own fields take precedence over `extra_body`, as in NeMo Gym; `metadata.chat_template_kwargs` takes
    precedence over the request's own `chat_template_kwargs`.
    """
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or not ("extra_body" in metadata or "chat_template_kwargs" in metadata):
        return
    rest = dict(metadata)
    for key, value in _object(rest, "extra_body").items():
        body.setdefault(key, value)
    own = body.get("chat_template_kwargs") or {}
    if not isinstance(own, dict):
        raise unconvertible("chat_template_kwargs", f"found {str(own)[:100]!r}; expected an object")
    if kwargs := _object(rest, "chat_template_kwargs"):
        body["chat_template_kwargs"] = {**own, **kwargs}
    if rest:
        body["metadata"] = rest
    else:
        del body["metadata"]


def _object(metadata: Json, key: str) -> Json:
    value = metadata.pop(key, None) or {}
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise unconvertible(f"metadata.{key}", f"found {value[:100]!r}, which is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise unconvertible(f"metadata.{key}", f"found a JSON {type(value).__name__}; expected an object")
    return value


def _chat_tool(tool: Json, index: int) -> Json:
    if tool.get("function") is not None:
        return tool
    if tool.get("type") != "function":
        raise unconvertible(f"tools[{index}]", f"found type {tool.get('type')!r}; chat engines support only functions")
    function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    return {"type": "function", "function": function}


def _chat_choice(choice: Json) -> Json:
    kind = choice.get("type")
    if kind == "function":
        if choice.get("function") is not None:
            return choice
        if not isinstance(name := choice.get("name"), str):
            raise unconvertible("tool_choice", f"found a function without a name: {str(choice)[:100]}")
        return {"type": "function", "function": {"name": name}}
    if kind == "allowed_tools":
        if choice.get("allowed_tools") is not None:
            return choice
        tools = [_chat_choice(tool) for tool in _allowed(choice)]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode") or "auto", "tools": tools}}
    raise unconvertible("tool_choice", f"found type {kind!r}; chat engines support only functions")


def _allowed(choice: Json) -> list[Json]:
    tools = choice.get("tools")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise unconvertible("tool_choice.tools", f"found {str(tools)[:100]!r}; expected a list of tools")
    return tools


def chat_request_to_responses(request: Json) -> Json:
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise unconvertible("messages", f"found {type(messages).__name__}; expected a list of messages")
    if request.get("n") not in (None, 1):
        raise unconvertible("n", f"found {request['n']}; the Responses API supports only one choice per request")
    body = {key: value for key, value in request.items() if key not in _CHAT_CONVERTED and value is not None}
    body["input"] = to_items(messages)
    if tools := request.get("tools"):
        body["tools"] = [_response_tool(tool) for tool in tools]
    if choice := request.get("tool_choice"):
        body["tool_choice"] = choice if isinstance(choice, str) else _response_choice(choice)
    limit = request.get("max_completion_tokens")
    if (limit := request.get("max_tokens") if limit is None else limit) is not None:
        body["max_output_tokens"] = limit
    text: Json = {}
    if text_format := request.get("response_format"):
        text["format"] = (
            {**text_format["json_schema"], "type": "json_schema"} if text_format.get("json_schema") else text_format
        )
    if verbosity := request.get("verbosity"):
        text["verbosity"] = verbosity
    if text:
        body["text"] = text
    if effort := request.get("reasoning_effort"):
        body["reasoning"] = {"effort": effort}
    if request.get("logprobs"):
        included = body.get("include")
        body["include"] = [*(included if isinstance(included, list) else ()), "message.output_text.logprobs"]
        body["top_logprobs"] = request.get("top_logprobs") or 0
    elif top := request.get("top_logprobs"):
        raise unconvertible("top_logprobs", f"found {top} without `logprobs`: set logprobs to true")
    return body


def _response_tool(tool: Json) -> Json:
    function = tool.get("function")
    return {**function, "type": "function"} if isinstance(function, dict) else tool


def _response_choice(choice: Json) -> Json:
    if isinstance(allowed := choice.get("allowed_tools"), dict):
        tools: list[Any] = [_response_choice(tool) for tool in _allowed(allowed)]
        return {"type": "allowed_tools", "mode": allowed.get("mode") or "auto", "tools": tools}
    return _response_tool(choice)


_ECHOED = (
    {"instructions", "metadata", "temperature", "top_p", "max_output_tokens", "reasoning", "text", "truncation"}
    | {"user", "top_logprobs"}
)  # fmt: skip
_ANSWER_KEYS = {"id", "object", "created", "model", "choices", "usage", "prompt_token_ids"}
_ANSWER_MESSAGE_KEYS = frozenset(
    {"role", "content", "tool_calls", "reasoning", "reasoning_content", "refusal", "annotations"}
    | {"function_call", *TOKEN_FIELDS}
)
_ITEM_KEYS = frozenset(
    {"id", "type", "status", "role", "content", "phase", "call_id", "name", "arguments", *TOKEN_FIELDS}
)
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_FINISH = {"max_output_tokens": "length", "content_filter": "content_filter"}
_NO_INPUT_DETAILS: Json = {"cached_tokens": 0, "cache_write_tokens": 0}
_NO_OUTPUT_DETAILS: Json = {"reasoning_tokens": 0}


def chat_to_response(answer: Json, request: Json, dialect: Dialect = _DEFAULT) -> Json:
    choice, message = check_completion(answer)
    try:
        serial = str(answer.get("id") or uuid.uuid4().hex).removeprefix("chatcmpl-")
        output = _output(message, serial, dialect, text_logprobs(choice) if wants_logprobs(request) else [])
        finish_last(output[-1], choice.get("finish_reason"), message)
        output[-1] |= token_fields(answer, choice, message)
        answer = {**answer, "id": serial, **stop_sequence_of(choice)}
        return response_around(output, answer, request, choice.get("finish_reason"))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise malformed(f"has an unexpected structure ({type(error).__name__}: {error})", answer) from error


def encoded_response(answer: Json, request: Json, dialect: Dialect) -> bytes:
    response = chat_to_response(answer, request, dialect)
    mark_unreadable_tool_call(response)
    try:
        return orjson.dumps(response)
    except TypeError as error:
        raise malformed(f"cannot be encoded as JSON ({error})", answer.keys()) from error


def finish_last(item: Json, finish_reason: Any, message: Json) -> None:
    """Mark a turn's last item as incomplete if the turn was truncated, and add the message's extra fields to it."""
    if finish_reason in _INCOMPLETE:
        item["status"] = "incomplete"
    if not message.keys() <= _ANSWER_MESSAGE_KEYS:  # e.g. OpenRouter's reasoning_details, which must be sent back
        extra = message.keys() - _ANSWER_MESSAGE_KEYS
        item.update({key: message[key] for key in extra if message[key] and key not in item})


def stop_sequence_of(choice: Json) -> Json:
    """Return the stop sequence that ended a choice, as the field `stop_sequence`; empty if the engine reports none."""
    # vLLM's name and SGLang's. Both also report the id of a stop token, which is not a sequence of the request.
    found = choice.get("stop_reason") if choice.get("stop_reason") is not None else choice.get("matched_stop")
    return {"stop_sequence": found} if isinstance(found, str) and choice.get("finish_reason") == "stop" else {}


def response_around(output: list[Json], answer: Json, request: Json, finish_reason: Any) -> Json:
    """Return a Response with this `output`. The id in `answer` must not have a prefix such as `chatcmpl-`."""
    reason = _INCOMPLETE.get(finish_reason or "")
    response: Json = {}
    for key, value in answer.items():
        if value is not None and key not in _ANSWER_KEYS:
            response[key] = value
    for key, value in request.items():
        if value is not None and key in _ECHOED:
            response[key] = value
    return {
        **response,
        "id": f"resp_{answer['id']}",
        "object": "response",
        "created_at": answer.get("created") or int(time.time()),
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": answer.get("model") or request.get("model") or "",
        "output": output,
        "parallel_tool_calls": request.get("parallel_tool_calls") is not False,
        "tool_choice": request.get("tool_choice") or "auto",
        "tools": request.get("tools") or [],
        "usage": _response_usage(answer.get("usage")),
    }


def _output(message: Json, serial: str, dialect: Dialect, logprobs: list[Json]) -> list[Json]:
    """Return the message's output items in this order: reasoning, text, tool calls. There is at least one item."""
    output: list[Json] = []
    content = text_of(message.get("content"))
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if dialect.think_tags and content and not reasoning:
        reasoning, content = split_thinking(content)
    if reasoning:
        summary = [{"type": "summary_text", "text": reasoning}]
        output.append({"id": f"rs_{serial}", "type": "reasoning", "summary": summary, "status": "completed"})
    calls, refusal = calls_of(message), message.get("refusal")
    if content or refusal or not (calls or output):
        parts: list[Json] = []
        if content or not refusal:
            annotations = [annotation(entry) for entry in message.get("annotations") or ()]
            own = logprobs_of_text(logprobs, content, to_end=not calls)
            parts.append({"type": "output_text", "text": content, "annotations": annotations, "logprobs": own})
        if refusal:
            parts.append({"type": "refusal", "refusal": refusal})
        item = {"id": f"msg_{serial}", "type": "message", "role": "assistant", "status": "completed", "content": parts}
        output.append(item)
    taken: set[str] = set()
    for index, call in enumerate(calls):
        output.append(call_item(call, f"fc_{serial}_{index}", taken))
    return output


def text_of(content: Any) -> str:
    if isinstance(content, list):
        return "".join([part.get("text") or "" for part in content if isinstance(part, dict)])
    if content is not None and not isinstance(content, str):
        raise malformed("has content that is not text", content)
    return content or ""


def call_item(call: Any, item_id: str, taken: set[str]) -> Json:
    """Convert a tool call to an item. Invalid parts are kept, so the agent can return an error to the model.

    `taken` contains the ids of earlier calls.
    """
    call, function = call_function(call)
    item = {
        "id": item_id,
        "type": "function_call",
        "call_id": read_id(call.get("id"), taken),
        "name": read_name(function.get("name")),
        "arguments": read_arguments(function.get("arguments")),
        "status": "completed",
    }
    if not call.keys() <= _CHAT_CALL_KEYS:
        item |= _beyond(call, _CHAT_CALL_KEYS, item)
    return item


def annotation(entry: Json) -> Json:
    kind = entry["type"]
    return {**entry[kind], "type": kind} if kind in entry else entry


def token_fields(answer: Json, choice: Json, message: Json) -> TokenHistory:
    """Return the engine's token ids and log-probabilities under NeMo Gym's field names; empty if it returned none."""
    if "generation_token_ids" in message:
        return cast(TokenHistory, {key: message[key] for key in TOKEN_FIELDS if key in message})
    prompt = answer.get("prompt_token_ids")
    generated = choice.get("token_ids")
    if prompt is None or generated is None:
        return {}
    fields: TokenHistory = {"prompt_token_ids": prompt, "generation_token_ids": generated}
    entries = (choice.get("logprobs") or {}).get("content")
    if entries is not None:
        if len(entries) != len(generated):
            raise malformed(f"has {len(generated)} token ids but {len(entries)} logprobs", choice)
        fields["generation_log_probs"] = [entry["logprob"] for entry in entries]
    return fields


def text_logprobs(choice: Json) -> list[Json]:
    entries = (choice.get("logprobs") or {}).get("content") or []
    return [
        {**_with_bytes(entry), "top_logprobs": [_with_bytes(top) for top in entry.get("top_logprobs") or ()]}
        for entry in entries
    ]


def logprobs_of_text(entries: list[Json], text: str, *, to_end: bool = True) -> list[Json]:
    """Return the logprob entries for the tokens of `text`. Engines also return entries for the reasoning before the
    text and the tool calls after it. If no tool calls follow (`to_end`), all remaining tokens belong to the text.
    """
    tokens = [entry.get("token") or "" for entry in entries]
    begin = "".join(tokens).rfind(text) if text else -1
    if begin < 0:
        return entries if text else []
    kept, at = [], 0
    for entry, token in zip(entries, tokens, strict=True):
        if at + len(token) > begin and (to_end or at < begin + len(text)):
            kept.append(entry)
        at += len(token)
    return kept


def _with_bytes(entry: Json) -> Json:
    return {**entry, "bytes": entry.get("bytes") or []}


def _response_usage(usage: Json | None) -> Json | None:
    if not usage:
        return None
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": _details(_NO_INPUT_DETAILS, usage.get("prompt_tokens_details")),
        "output_tokens": completion,
        "output_tokens_details": _details(_NO_OUTPUT_DETAILS, usage.get("completion_tokens_details")),
        "total_tokens": usage.get("total_tokens") or prompt + completion,
    }


def _details(none: Json, given: Json | None) -> Json:
    return {**none, **{key: value for key, value in given.items() if value is not None}} if given else dict(none)


def response_to_chat(response: Json) -> Json:
    check_response(response)
    message: Json = {"role": "assistant", "content": None, "refusal": None}
    choice: Json = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    completion: Json = {
        "id": "chatcmpl-" + str(response.get("id") or uuid.uuid4().hex).removeprefix("resp_"),
        "object": "chat.completion",
        "created": int(response.get("created_at") or time.time()),
        "model": response.get("model") or "",
        "choices": [choice],
    }
    for item in response.get("output") or ():
        _add_output_item(message, choice, item)
        if "generation_token_ids" in item:
            message.update({key: item[key] for key in TOKEN_FIELDS if key in item})
    reason = (response.get("incomplete_details") or {}).get("reason")
    if reason:
        choice["finish_reason"] = _FINISH.get(reason, "stop")
    elif "tool_calls" in message:
        choice["finish_reason"] = "tool_calls"
    if usage := response.get("usage"):
        completion["usage"] = {
            "prompt_tokens": usage["input_tokens"],
            "completion_tokens": usage["output_tokens"],
            "total_tokens": usage["total_tokens"],
            "prompt_tokens_details": usage.get("input_tokens_details"),
            "completion_tokens_details": usage.get("output_tokens_details"),
        }
    return completion


def _add_output_item(message: Json, choice: Json, item: Json) -> None:
    kind = item.get("type")
    if kind == "message":
        for part in item["content"]:
            if part["type"] == "refusal":
                message["refusal"] = (message["refusal"] or "") + part["refusal"]
                continue
            message["content"] = (message["content"] or "") + part["text"]
            for entry in part.get("annotations") or ():
                if entry.get("type") == "url_citation" and "url_citation" not in entry:
                    rest = {key: value for key, value in entry.items() if key != "type"}
                    entry = {"type": "url_citation", "url_citation": rest}
                message.setdefault("annotations", []).append(entry)
            if logprobs := part.get("logprobs"):
                before = choice["logprobs"]["content"] if choice["logprobs"] else []
                choice["logprobs"] = {"content": [*before, *logprobs], "refusal": None}
        message.update(_beyond(item, _ITEM_KEYS, message))
    elif kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        call: Json = {"id": item["call_id"], "type": "function", "function": function}
        if not item.keys() <= _ITEM_KEYS:
            call |= _beyond(item, _ITEM_KEYS, call)
        message.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        text = "\n".join([part["text"] for part in item.get("content") or item.get("summary") or ()])
        message["reasoning_content"] = (
            f"{message['reasoning_content']}\n{text}" if "reasoning_content" in message else text
        )


def _beyond(item: Json, known: frozenset[str], taken: Json) -> Json:
    """Return an item's non-standard fields, such as thought signatures, which must be sent back to the model."""
    return {key: item[key] for key in item.keys() - known - taken.keys() if item[key] is not None}


_MESSAGE_ITEM_KEYS = frozenset({"type", "id", "status", "role", "content", "phase", *TOKEN_FIELDS})
_CHAT_CALL_KEYS = frozenset({"id", "type", "function", "index"})
_CHAT_MESSAGE_KEYS = frozenset(
    {"role", "content", "tool_calls", "reasoning", "reasoning_content", "refusal", *TOKEN_FIELDS}
)
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_CHAT_PARTS = frozenset({"image_url", "input_audio", "audio_url", "video_url", "file"})


def to_messages(items: list[Any], dialect: Dialect, first: int = 0) -> list[Json]:
    """Convert input items. `first`: the index of the first one in the request, for messages about it."""
    messages: list[Json] = []
    turn: Json | None = None
    for index, item in enumerate(items, first):
        try:
            turn = _add_input_item(messages, turn, item, index, dialect)
        except (KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__} {error}"
            found = f"found {str(item)[:200]}, which is not an input item ({reason})"
            raise unconvertible(f"input[{index}]", found) from error
    for message in messages:
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
    return messages


def _add_input_item(messages: list[Json], turn: Json | None, item: Json, index: int, dialect: Dialect) -> Json | None:
    """Append one item. Return the assistant message that the next items from the model belong to, if any."""
    kind, role = item.get("type") or "message", item.get("role")
    if kind == "function_call_output":
        output = item["output"]
        if not isinstance(output, str):
            output = _chat_content(output, f"input[{index}].output")
        messages.append({"role": "tool", "tool_call_id": _required_text(item, "call_id", index), "content": output})
        return None
    if kind == "message" and role != "assistant":
        messages.append(_chat_message(item, role, index, dialect))
        return None
    if turn is None:
        turn = {"role": "assistant", "content": None}
        messages.append(turn)
    if kind == "function_call":
        name, arguments = _required_text(item, "name", index), read_arguments(item.get("arguments", ""))
        call: Json = {"id": _required_text(item, "call_id", index), "type": "function"}
        call["function"] = {"name": name, "arguments": arguments}
        if not item.keys() <= _ITEM_KEYS:
            call |= _beyond(item, _ITEM_KEYS, call)
        turn.setdefault("tool_calls", []).append(call)
    elif kind == "message":
        _add_content(turn, item, index)
    elif kind == "reasoning":
        text = "\n".join([part["text"] for part in item.get("content") or item.get("summary") or ()])
        if text and dialect.think_tags:
            turn["content"] = (turn["content"] or "") + f"<think>{text}</think>"
        elif text:
            for field in dialect.reasoning_fields:
                turn[field] = f"{turn[field]}\n{text}" if field in turn else text
    else:
        found = f"found an item of type {kind!r}, which Chat Completions does not support"
        raise unconvertible(f"input[{index}]", found)
    if dialect.send_token_ids and "generation_token_ids" in item:
        turn.update({key: item[key] for key in TOKEN_FIELDS if key in item})
    return turn


def _chat_message(item: Json, role: Any, index: int, dialect: Dialect) -> Json:
    if role == "developer" and dialect.developer_as_system:
        role = "system"
    elif role not in ("user", "system", "developer", "tool"):
        raise unconvertible(f"input[{index}]", f"found a message with role {role!r}")
    content = item["content"]
    if not isinstance(content, str):
        content = _chat_content(content, f"input[{index}].content")
    message = {"role": role, "content": content}
    if extra := item.keys() - _MESSAGE_ITEM_KEYS:
        message.update({key: item[key] for key in extra})
    return message


def _required_text(item: Json, key: str, index: int) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value:
        raise unconvertible(f"input[{index}]", f"found a {item.get('type')} whose {key} is {value!r}")
    return value


def _add_content(turn: Json, item: Json, index: int) -> None:
    content = item.get("content")
    if not isinstance(content, str):
        text = []
        for part in content or ():
            kind = part.get("type")
            if kind == "refusal":
                turn["refusal"] = turn.get("refusal", "") + part["refusal"]
            elif kind in _TEXT_PARTS:
                text.append(part["text"])
            else:
                raise unconvertible(f"input[{index}].content", f"found a part of type {kind!r} in an assistant message")
        content = "".join(text) if text or "refusal" not in turn else None
    if content is not None:
        turn["content"] = (turn["content"] or "") + content
    if extra := item.keys() - _MESSAGE_ITEM_KEYS:
        turn.update({key: item[key] for key in extra})


def _chat_content(parts: Any, where: str) -> str | list[Json]:
    """Convert content parts. A single text becomes a string: many chat templates support only strings."""
    if not isinstance(parts, list):
        raise unconvertible(where, f"found {type(parts).__name__}; expected text or a list of parts")
    converted: list[Json] = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXT_PARTS:
            converted.append({"type": "text", "text": part["text"]})
        elif kind == "input_image" and part.get("image_url"):
            image = {"url": part["image_url"], "detail": part.get("detail")}
            converted.append({"type": "image_url", "image_url": {key: v for key, v in image.items() if v}})
        elif kind == "input_file":
            file = {key: value for key, value in part.items() if key != "type" and value is not None}
            converted.append({"type": "file", "file": file})
        elif kind in _CHAT_PARTS:
            converted.append(part)
        else:
            found = f"found {str(part)[:100]}, which Chat Completions does not support"
            raise unconvertible(f"{where}[{index}]", found)
    is_text = len(converted) == 1 and converted[0]["type"] == "text"
    return str(converted[0]["text"]) if is_text else converted


def to_items(messages: list[Any]) -> list[Json]:
    items: list[Json] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        try:
            items.extend(_message_items(message, where))
        except (KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__} {error}"
            raise unconvertible(where, f"found {str(message)[:200]}, which is not a message ({reason})") from error
    return items


def _message_items(message: Json, where: str) -> list[Json]:
    role = message["role"]
    if role == "assistant":
        return _turn_items(message, where)
    content = message["content"]
    if not isinstance(content, str):
        content = _response_content(content, f"{where}.content")
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": content}]
    if role not in ("user", "system", "developer"):
        raise unconvertible(where, f"found role {role!r}")
    return [{**message, "type": "message", "role": role, "content": content}]


def _turn_items(message: Json, where: str) -> list[Json]:
    items: list[Json] = []
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]})
    content, refusal, calls = message.get("content"), message.get("refusal"), message.get("tool_calls")
    if content or refusal or not (calls or items):
        if isinstance(content, list):
            refused = [part.get("refusal") or "" for part in content if part.get("type") == "refusal"]
            refusal = (refusal or "") + "".join(refused)
            content = "".join([part.get("text") or "" for part in content if part.get("type") == "text"])
        parts: list[Json] = [{"type": "output_text", "text": content or ""}] if content or not refusal else []
        if refusal:
            parts.append({"type": "refusal", "refusal": refusal})
        extra = {key: message[key] for key in message.keys() - _CHAT_MESSAGE_KEYS}
        items.append({**extra, "type": "message", "role": "assistant", "content": parts})
    for call in calls or ():
        function = call.get("function")
        if not isinstance(function, dict):
            raise unconvertible(f"{where}.tool_calls", f"found {str(call)[:100]}; expected a function call")
        item = {key: call[key] for key in call.keys() - _CHAT_CALL_KEYS}
        item.update(type="function_call", call_id=call.get("id"), name=function.get("name"))
        item["arguments"] = read_arguments(function.get("arguments", ""))
        items.append(item)
    if "generation_token_ids" in message:
        items[-1].update({key: message[key] for key in TOKEN_FIELDS if key in message})
    return items


def _response_content(parts: Any, where: str) -> list[Json]:
    if not isinstance(parts, list):
        raise unconvertible(where, f"found {type(parts).__name__}; expected text or a list of parts")
    converted: list[Json] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            converted.append({**part, "type": "input_text"})
        elif kind == "image_url":
            image = part["image_url"]
            url, detail = (image, None) if isinstance(image, str) else (image.get("url"), image.get("detail"))
            converted.append({"type": "input_image", "image_url": url, "detail": detail or "auto"})
        elif kind == "file":
            converted.append({"type": "input_file", **part["file"]})
        elif kind in _CHAT_PARTS:
            converted.append(part)
        else:
            raise unconvertible(where, f"found {str(part)[:100]}, which the Responses API does not support")
    return converted


OPENING, CLOSING = "<think>", "</think>"


def split_thinking(content: str) -> tuple[str, str]:
    """Return the text inside a leading `<think>...</think>`, and the rest of the content, both verbatim.

    If the opening tag is missing, it was part of the prompt, as in the templates of pure reasoning models. If the
    closing tag is missing, the output was truncated during the reasoning.
    """
    head, closing, rest = content.partition(CLOSING)
    before, opening, reasoning = head.partition(OPENING)
    if opening:
        return ("", content) if before.strip() else (reasoning, rest)
    return (head, rest) if closing else ("", content)


class ThinkTags:
    """Splits streamed text into reasoning and content.

    Text after an opening tag is reasoning and is returned immediately. Text without an opening tag is held back until
    the closing tag arrives, because it can still turn out to be reasoning.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state = self._begin

    def split(self, text: str) -> tuple[str, str]:
        return self._state(text)

    def rest(self) -> tuple[str, str]:
        return (self._held, "") if self._state == self._thinking else split_thinking(self._held)

    def _begin(self, text: str) -> tuple[str, str]:
        self._held += text
        stripped = self._held.lstrip()
        if OPENING.startswith(stripped[: len(OPENING)]) and len(stripped) < len(OPENING):
            return "", ""
        held, self._held = self._held, ""
        if stripped.startswith(OPENING):
            self._state = self._thinking
            return self._thinking(stripped[len(OPENING) :])
        self._state = self._unknown
        return self._unknown(held)

    def _thinking(self, text: str) -> tuple[str, str]:
        seen = self._held + text
        reasoning, closing, rest = seen.partition(CLOSING)
        if closing:
            self._held, self._state = "", self._content
            return reasoning, rest
        # A suffix that may be the start of the closing tag is held back.
        end = max(len(seen) - len(CLOSING) + 1, 0)
        while not CLOSING.startswith(seen[end:]):
            end += 1
        self._held = seen[end:]
        return seen[:end], ""

    def _unknown(self, text: str) -> tuple[str, str]:
        searched = max(len(self._held) - len(CLOSING), 0)
        self._held += text
        if self._held.find(CLOSING, searched) < 0:
            return "", ""
        held, self._held, self._state = self._held, "", self._content
        return split_thinking(held)

    def _content(self, text: str) -> tuple[str, str]:
        return "", text


OPENINGS = (
    *("<tool_call>", "<|tool_call", "<tool_calls>", "<function=", "<function_call"),
    *("[TOOL_CALLS]", "<|python_tag|>", "<｜tool▁call", "<|tool▁call", "<minimax:tool_call>", "<seed:tool_call>"),
)
"""The start of a call in common formats. vLLM's parsers leave calls that they cannot read in the content."""
UNREADABLE = "unreadable_call"


def mark_unreadable_tool_call(response: Json) -> None:
    """Set `finish_reason: unreadable_call` if the Response has no calls, but the start of one in its text."""
    if not response.get("tools") or response.get("status") == "incomplete":
        return  # a truncated call ends the episode with the finish reason of its limit
    items = response["output"]
    for item in items:  # not a generator: most turns begin with a call
        if item["type"] == "function_call":
            return
    texts = [part.get("text") or "" for item in items if item["type"] == "message" for part in item["content"]]
    if any(opening in text for text in texts for opening in OPENINGS):
        response["finish_reason"] = UNREADABLE
