"""Converts create requests of Anthropic's Messages API to Responses create requests.

    system                            ->  instructions
    text block                        ->  message with an input_text or output_text part
    image block                       ->  message with an input_image part, or such a part of a tool's output
    thinking block                    ->  {"type": "reasoning", "summary": [...]}
    tool_use block                    ->  {"type": "function_call", "call_id", "name", "arguments"}
    tool_result block                 ->  {"type": "function_call_output", "call_id", "output"}

Documents, the provider's own tools and an unfinished answer of the assistant are refused. Fields that neither API
defines are copied unchanged.
"""

from __future__ import annotations

from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.responses_api_models.convert.messages import unconvertible

INVALID_ARGUMENTS = "invalid_arguments"
"""Only key of a tool_use block's `input` if the model's arguments are not a JSON object; its value is their text."""
_CONVERTED = frozenset(
    {"messages", "system", "max_tokens", "tools", "tool_choice", "stop_sequences", "metadata", "output_config"}
    | {"output_format"}
)
_WITHOUT_EFFECT = frozenset(
    {"thinking", "cache_control", "service_tier", "inference_geo", "speed", "diagnostics", "user_profile_id"}
    | {"workspace_id"}
)
"""Fields about billing, caching and routing, and `thinking`: whether the model thinks is a setting of the engine."""
_REFUSED = ("container", "mcp_servers", "context_management", "fallbacks")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_TEXT = "only text is supported in this place"
_TEXT_OR_IMAGE = "only text and images are supported in this place"


def messages_to_responses(request: Json) -> Json:
    """Convert a create request. Raises Failure bad_request if it is invalid or cannot be converted.

    The stop sequences stay in the request as `stop`.
    """
    for name in _REFUSED:
        if request.get(name):
            raise unconvertible(name, "found a feature of Anthropic's servers, which this server does not have")
    dropped = _CONVERTED | _WITHOUT_EFFECT
    body = {key: value for key, value in request.items() if key not in dropped and value is not None}
    limit = request.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise unconvertible("max_tokens", f"found {limit!r:.100}; expected an integer of at least 1")
    return {**body, **prompt_of(request), "max_output_tokens": limit, **_options(request)}


def prompt_of(request: Json) -> Json:
    """Convert what becomes the prompt: `system`, `messages`, `tools` and `tool_choice`.

    Raises Failure bad_request if it is invalid or cannot be converted.
    """
    body: Json = {"input": _items(request.get("messages"))}
    if system := _text(request.get("system"), "system"):
        body["instructions"] = system
    if tools := _objects(request.get("tools"), "tools"):
        body["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    if (choice := request.get("tool_choice")) is not None:
        body.update(_choice(choice))
    return body


def _options(request: Json) -> Json:
    body: Json = {}
    if stop := request.get("stop_sequences"):
        if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
            raise unconvertible("stop_sequences", f"found {stop!r:.100}; expected a list of texts that are not empty")
        body["stop"] = stop
    metadata = request.get("metadata")
    if isinstance(metadata, dict):
        rest = {key: value for key, value in metadata.items() if key != "user_id" and value is not None}
        body |= {"metadata": rest} if rest else {}
        body |= {"user": metadata["user_id"]} if metadata.get("user_id") else {}
    config = request.get("output_config")
    config = config if isinstance(config, dict) else {}
    if effort := config.get("effort"):
        body["reasoning"] = {"effort": effort}
    if isinstance(wanted := config.get("format") or request.get("output_format"), dict):
        body["text"] = {"format": {"name": "output", "strict": True, **wanted}}
    return body


def _items(messages: Any) -> list[Json]:
    if not isinstance(messages, list) or not messages:
        raise unconvertible("messages", f"found {messages!r:.100}; expected a list with at least one message")
    items: list[Json] = []
    for index, message in enumerate(_objects(messages, "messages")):
        where = f"messages[{index}]"
        role = message.get("role")
        if role not in ("user", "assistant"):
            raise unconvertible(f"{where}.role", f"found {role!r:.100}; expected user or assistant")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            raise unconvertible(f"{where}.content", f"found {content!r:.100}; expected text or a list of blocks")
        for number, block in enumerate(_objects(blocks, f"{where}.content")):
            convert = _user_item if role == "user" else _assistant_item
            items.append(convert(block, f"{where}.content[{number}]"))
    if messages[-1]["role"] == "assistant":
        raise unconvertible(
            f"messages[{len(messages) - 1}]",
            "found an answer of the assistant as the last message; this server cannot continue an unfinished answer: "
            "end with a message of the user",
        )
    return items


def _user_item(block: Json, where: str) -> Json:
    kind = block.get("type")
    if kind == "text":
        return {"type": "message", "role": "user", "content": [_part("input_text", block, where)]}
    if kind == "image":
        return {"type": "message", "role": "user", "content": [_image(block, where)]}
    if kind == "tool_result":
        output = _output(block, f"{where}.content")
        call_id = _required(block, "tool_use_id", where)
        return {"type": "function_call_output", "call_id": call_id, "output": output}
    raise _unsupported(block, where, _TEXT_OR_IMAGE)


def _output(block: Json, where: str) -> str | list[Json]:
    """Return a tool's output: its text or, if it contains images, its parts in their order."""
    content = block.get("content")
    if isinstance(content, list) and any(part.get("type") == "image" for part in _objects(content, where)):
        parts = [
            _image(part, f"{where}[{index}]") if part.get("type") == "image" else _text_part(part, f"{where}[{index}]")
            for index, part in enumerate(content)
        ]
        return [{"type": "input_text", "text": "error:"}, *parts] if block.get("is_error") else parts
    text = _text(content, where)
    return orjson.dumps({"error": text}).decode() if block.get("is_error") else text


def _text_part(block: Json, where: str) -> Json:
    if block.get("type") != "text":
        raise _unsupported(block, where, _TEXT_OR_IMAGE)
    return _part("input_text", block, where)


def _image(block: Json, where: str) -> Json:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "url":
        url = _required(source, "url", f"{where}.source")
    elif source.get("type") == "base64":
        kind, data = (_required(source, name, f"{where}.source") for name in ("media_type", "data"))
        url = f"data:{kind};base64,{data}"
    else:
        raise unconvertible(f"{where}.source", f"found {str(block.get('source'))[:100]!r}; expected base64 or url")
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _assistant_item(block: Json, where: str) -> Json:
    kind = block.get("type")
    if kind == "text":
        return {"type": "message", "role": "assistant", "content": [_part("output_text", block, where)]}
    if kind == "thinking":
        return {"type": "reasoning", "summary": [{"type": "summary_text", "text": str(block.get("thinking") or "")}]}
    if kind == "tool_use":
        call_id, name = _required(block, "id", where), _required(block, "name", where)
        return {"type": "function_call", "call_id": call_id, "name": name, "arguments": _arguments(block, where)}
    raise _unsupported(block, where)


def _arguments(block: Json, where: str) -> str:
    given = block.get("input")
    if not isinstance(given, dict):
        raise unconvertible(f"{where}.input", f"found {given!r:.100}; expected an object")
    if given.keys() == {INVALID_ARGUMENTS} and isinstance(text := given[INVALID_ARGUMENTS], str):
        return text
    return orjson.dumps(given).decode()


def _part(kind: str, block: Json, where: str) -> Json:
    text = block.get("text")
    if not isinstance(text, str):
        raise unconvertible(f"{where}.text", f"found {text!r:.100}; expected text")
    return {"type": kind, "text": text}


def _text(content: Any, where: str) -> str:
    """Return a text or a list of text blocks as one text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise unconvertible(where, f"found {content!r:.100}; expected text or a list of text blocks")
    texts: list[str] = []
    for index, block in enumerate(_objects(content, where)):
        if block.get("type") != "text":
            raise _unsupported(block, f"{where}[{index}]")
        texts.append(_part("input_text", block, f"{where}[{index}]")["text"])
    return "\n".join(texts)


def _tool(tool: Json, where: str) -> Json:
    if tool.get("type") not in (None, "custom"):
        detail = f"found {tool['type']!r:.100}, a tool of Anthropic's servers; expected a tool with an input_schema"
        raise unconvertible(f"{where}.type", detail)
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise unconvertible(f"{where}.input_schema", f"found {schema!r:.100}; expected a JSON schema")
    converted: Json = {"type": "function", "name": _required(tool, "name", where), "parameters": schema}
    return {**converted, **{key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}}


def _choice(choice: Any) -> Json:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        body: Json = {"tool_choice": {"type": "function", "name": _required(choice, "name", "tool_choice")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        body = {"tool_choice": _CHOICES[kind]}
    else:
        raise unconvertible("tool_choice", f"found {choice!r:.100}; expected a type of auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        body["parallel_tool_calls"] = False
    return body


def _objects(values: Any, where: str) -> list[Json]:
    if values is None:
        return []
    if not isinstance(values, list):
        raise unconvertible(where, f"found {values!r:.100}; expected a list")
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise unconvertible(f"{where}[{index}]", f"found {value!r:.100}; expected an object")
    return values


def _required(value: Json, key: str, where: str) -> str:
    found = value.get(key)
    if not isinstance(found, str) or not found:
        raise unconvertible(f"{where}.{key}", f"found {found!r:.100}; expected text")
    return found


def _unsupported(block: Json, where: str, supported: str = _TEXT) -> Exception:
    return unconvertible(where, f"found a block of type {str(block.get('type'))[:100]!r}; {supported}")
