"""Converts conversations between Responses input items and chat messages. This is the hot path of `convert`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import TOKEN_FIELDS, Json
from rollyard.services.responses.tool_calls import read_arguments

_MESSAGE_KEYS = frozenset({"type", "id", "status", "role", "content", "phase", *TOKEN_FIELDS})
_CALL_KEYS = frozenset({"type", "id", "status", "call_id", "name", "arguments", *TOKEN_FIELDS})
_CHAT_CALL_KEYS = frozenset({"id", "type", "function", "index"})
_CHAT_MESSAGE_KEYS = frozenset(
    {"role", "content", "tool_calls", "reasoning", "reasoning_content", "refusal", *TOKEN_FIELDS}
)
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_CHAT_PARTS = frozenset({"image_url", "input_audio", "audio_url", "video_url", "file"})


@dataclass(frozen=True, slots=True)
class Dialect:
    """The variant of Chat Completions that an engine expects. The defaults suit vLLM."""

    developer_as_system: bool = True
    """Send developer messages with the system role: most chat templates have no developer role, and many silently drop
    messages with it."""
    reasoning_fields: tuple[str, ...] = ("reasoning_content", "reasoning")
    """Fields in which the reasoning of earlier assistant messages is sent. Older vLLM versions read the first field and
    newer versions the second; each ignores the other, so both are sent."""
    think_tags: bool = False
    """Whether the reasoning is `<think>...</think>` at the start of the content, because the engine has no reasoning
    parser."""
    max_tokens_field: str = "max_tokens"
    """Name of the field for the output token limit."""
    send_token_ids: bool = False
    """Send the token ids of earlier turns as fields of their assistant messages."""


def unconvertible(where: str, found: str) -> Failure:
    """Return the failure for a part of a request that cannot be converted."""
    return Failure(FailureKind.BAD_REQUEST, f"{where}: {found}")


def to_messages(items: list[Any], dialect: Dialect) -> list[Json]:
    """Convert input items to chat messages. Consecutive items from the model become one assistant message."""
    messages: list[Json] = []
    turn: Json | None = None
    for index, item in enumerate(items):
        try:
            turn = _add_item(messages, turn, item, index, dialect)
        except (KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__} {error}"
            raise unconvertible(
                f"input[{index}]", f"found {str(item)[:200]}, which is not an input item ({reason})"
            ) from error
    for message in messages:
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
    return messages


def _add_item(messages: list[Json], turn: Json | None, item: Json, index: int, dialect: Dialect) -> Json | None:
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
        turn.setdefault("tool_calls", []).append(_chat_call(item, index))
    elif kind == "message":
        _add_text(turn, item, index)
    elif kind == "reasoning":
        _add_reasoning(turn, item, dialect)
    else:
        raise unconvertible(
            f"input[{index}]", f"found an item of type {kind!r}, which Chat Completions does not support"
        )
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
    if extra := item.keys() - _MESSAGE_KEYS:
        message.update({key: item[key] for key in extra})
    return message


def _required_text(item: Json, key: str, index: int) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value:
        raise unconvertible(f"input[{index}]", f"found a {item.get('type')} whose {key} is {value!r}")
    return value


def _chat_call(item: Json, index: int) -> Json:
    function = {"name": _required_text(item, "name", index), "arguments": read_arguments(item.get("arguments", ""))}
    call = {"id": _required_text(item, "call_id", index), "type": "function", "function": function}
    if extra := item.keys() - _CALL_KEYS:  # e.g. Gemini's thought signatures, which must be sent back
        call.update({key: item[key] for key in extra if item[key] is not None})
    return call


def _add_text(turn: Json, item: Json, index: int) -> None:
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
    if extra := item.keys() - _MESSAGE_KEYS:
        turn.update({key: item[key] for key in extra})


def _add_reasoning(turn: Json, item: Json, dialect: Dialect) -> None:
    text = "\n".join([part["text"] for part in item.get("content") or item.get("summary") or ()])
    if not text:
        return
    if dialect.think_tags:
        turn["content"] = (turn["content"] or "") + f"<think>{text}</think>"
        return
    for field in dialect.reasoning_fields:
        turn[field] = f"{turn[field]}\n{text}" if field in turn else text


def _chat_content(parts: Any, where: str) -> str | list[Json]:
    """Convert content parts to the chat format. A single text part becomes a string, because many chat templates
    support only strings.
    """
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
            raise unconvertible(
                f"{where}[{index}]", f"found {str(part)[:100]}, which Chat Completions does not support"
            )
    if len(converted) == 1 and converted[0]["type"] == "text":
        text: str = converted[0]["text"]
        return text
    return converted


def to_items(messages: list[Any]) -> list[Json]:
    """Convert chat messages to input items."""
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
