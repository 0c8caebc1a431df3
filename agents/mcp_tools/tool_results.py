"""Converts the result of an MCP tool call to what the model reads."""

from __future__ import annotations

from typing import Any

import orjson

from rollyard.agents.tool_answers import ToolAnswer, error_answer, text_answer
from rollyard.records.types import Json


def answer_of_result(result: Any) -> ToolAnswer:
    """Return a tool's text, or content parts if it returned images. Structured content is used if there is no other."""
    if not isinstance(result, dict):
        return text_answer(_dumped(result))
    content, structured = result.get("content"), result.get("structuredContent")
    parts = [_part(part) for part in content] if isinstance(content, list) else []
    failed = result.get("isError") is True
    if not parts:
        if structured is not None:
            return text_answer(_dumped(structured))
        return error_answer("The tool failed without a message.") if failed else ToolAnswer("", False)
    done = not failed and isinstance(structured, dict) and structured.get("done") is True
    if any(part["type"] != "input_text" for part in parts):
        return ToolAnswer(parts, done)
    answer = text_answer("\n".join(part["text"] for part in parts))
    return ToolAnswer(answer.output, not failed and (done or answer.done))


def _part(part: Any) -> Json:
    """Convert one content block to a Responses content part."""
    if not isinstance(part, dict):
        return _text(_dumped(part))
    kind, data = part.get("type"), part.get("data")
    if kind == "text":
        return _text(str(part.get("text", "")))
    if kind == "image" and isinstance(data, str):
        return _image(part.get("mimeType"), data)
    if kind == "audio":
        return _text(f"[audio, {part.get('mimeType')}]")  # Responses has no part for the audio of a tool
    if kind == "resource_link":
        return _text(f"{part.get('name')}: {part.get('uri')}")
    if kind == "resource" and isinstance(resource := part.get("resource"), dict):
        return _resource(resource)
    return _text(_dumped(part))


def _resource(resource: Json) -> Json:
    text, blob, media_type = resource.get("text"), resource.get("blob"), resource.get("mimeType")
    if isinstance(text, str):
        return _text(text)
    if isinstance(blob, str) and isinstance(media_type, str) and media_type.startswith("image/"):
        return _image(media_type, blob)
    return _text(f"[{media_type}: {resource.get('uri')}]")


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _image(media_type: object, data: str) -> Json:
    url = f"data:{media_type if isinstance(media_type, str) else 'image/png'};base64,{data}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _dumped(value: Any) -> str:
    return orjson.dumps(value).decode()
