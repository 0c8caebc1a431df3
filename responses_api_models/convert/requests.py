"""Converts create requests in both directions. The conversations in them are converted by items.py."""

from __future__ import annotations

from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.responses_api_models.convert.messages import Dialect, to_items, to_messages, unconvertible

__all__ = ["Dialect", "apply_metadata", "chat_request_to_responses", "request_to_chat"]

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


def request_to_chat(request: Json, dialect: Dialect = _DEFAULT) -> Json:
    """Convert a Responses create request to a Chat Completions request."""
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
    if text := request.get("text"):
        _add_text(body, text)
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
    """Raises Failure bad_request if a Responses create request refers to a stored conversation."""
    for name in STATEFUL:
        if request.get(name):
            raise unconvertible(
                name, "this server does not store conversations; send the complete conversation as `input`"
            )


def refuse_logprobs(request: Json, server: str) -> None:
    """Raises Failure bad_request if a Responses create request asks for log-probabilities."""
    if wants_logprobs(request):
        name = "top_logprobs" if request.get("top_logprobs") else "include"
        raise unconvertible(name, f"{server} has no log-probabilities: its model is a program; remove the field")


def wants_logprobs(request: Json) -> bool:
    """Return True if a Responses create request asks for the log-probabilities of the output text."""
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


def _add_text(body: Json, text: Json) -> None:
    text_format = text.get("format") or {}
    if text_format.get("type") == "json_schema":
        schema = {key: value for key, value in text_format.items() if key != "type" and value is not None}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif text_format and text_format.get("type") != "text":
        body["response_format"] = text_format
    if text.get("verbosity"):
        body["verbosity"] = text["verbosity"]


def chat_request_to_responses(request: Json) -> Json:
    """Convert a Chat Completions create request to a Responses create request."""
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
