"""Converts message content to text."""

from __future__ import annotations

import re
from typing import Any

from rollyard.analysis.viewer.api.untrusted_values import pretty
from rollyard.records.io.json_values import text_of
from rollyard.records.types import Json

_TEXTS = ("text", "refusal", "transcript")
_MAX_URL = 200
_THINK = re.compile(r"<think>|</think>")


def text_of_content(content: Any) -> str:
    """Return all parts of a message's content: text verbatim, and other parts as a description in brackets."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(_part, content)))
    return "" if content is None else pretty(content)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return pretty(part)
    for key in _TEXTS:
        if isinstance(part.get(key), str):
            return str(part[key])
    kind = text_of(part.get("type"))
    if "image" in kind or "file" in kind or "audio" in kind:
        return f"[{kind.removeprefix('input_').removeprefix('output_')}: {_source(part)}]"
    return pretty(part)


def _source(part: Json) -> str:
    """Describe where an image or a file comes from, without including its data."""
    for key in ("image_url", "file_url", "url", "filename", "file_id", "file_data", "data", "input_audio"):
        value = part.get(key)
        if isinstance(value, dict):
            value = value.get("url") or value.get("data")
        if isinstance(value, str) and value:
            head, comma, data = value.partition(",")
            if value.startswith("data:") and comma:
                return f"{head[5:_MAX_URL]}, {len(data)} characters"
            return value if len(value) <= _MAX_URL else f"{value[:_MAX_URL]}... ({len(value)} characters)"
    return "no source"


def thoughts(text: str) -> list[tuple[bool, str]]:
    """Split a model's text into (is_thought, text) pieces.

    A `</think>` without an opening tag ends a thought that began in the prompt. A text without tags is one piece.
    """
    pieces: list[tuple[bool, str]] = []
    tags = list(_THINK.finditer(text))
    if not tags:
        return [(False, text)]
    thinking = bool(tags) and tags[0].group() == "</think>"
    start = 0
    for tag in tags:
        pieces.append((thinking, text[start : tag.start()]))
        thinking = tag.group() == "<think>"
        start = tag.end()
    pieces.append((thinking, text[start:]))
    return [(thought, piece.strip("\n")) for thought, piece in pieces if piece.strip()]
