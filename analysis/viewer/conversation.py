"""Converts the items of a row to events with their speakers, turns and rewards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rollyard.analysis.viewer.api_records import Event, Speaker
from rollyard.analysis.viewer.token_texts import tokens_of
from rollyard.analysis.viewer.untrusted_values import pretty, sanitize
from rollyard.records.jsonl import lenient
from rollyard.records.rewards import mask_of
from rollyard.records.tokens import is_from_model
from rollyard.records.types import Json, items, mapping, number, text_of

_ROLES: dict[str, Speaker] = {"system": "system", "developer": "system", "user": "user", "assistant": "answer"}
_CALLS = ("arguments", "input", "action", "operation", "code", "queries", "query")
"""Fields that can contain a call's arguments, depending on the type of call."""
_RESULTS = ("output", "outputs", "results", "result", "error")
"""Fields that can contain the result if an item is both a call and its result."""
_HUGE_INTEGER = re.compile(r"[:\[,]\s*-?\d{19,}\s*[,\]}]")
"""Parsing might turn it into a float."""
_TEXTS = ("text", "refusal", "transcript")
_MAX_URL = 200
_THINK = re.compile(r"<think>|</think>")


def events_of(row: Mapping[str, Any]) -> list[Event]:
    params, response = mapping(row.get("responses_create_params")), mapping(row.get("response"))
    events: list[Event] = []
    if isinstance(instructions := params.get("instructions"), str):
        events.append(Event(speaker="system", text=instructions))
    prompt = params.get("input")
    for item in [{"role": "user", "content": prompt}] if isinstance(prompt, str) else items(prompt):
        events += _item_events(item, 0)
    trained = not mask_of(row)
    return [*events, *_output_events(items(response.get("output")), trained)]


def _output_events(output: list[Any], trained: bool) -> Iterator[Event]:
    turn, writing = 0, False
    written: list[str] = []
    turns: dict[str, int] = {}
    for item in output:
        from_model = is_from_model(item)
        if from_model and not writing:
            turn += 1
            written = []
        writing = from_model
        content = mapping(item)
        call = text_of(content.get("call_id"))
        if from_model and call:
            turns[call] = turn
        item_events = list(_item_events(item, turns.get(call, turn)))
        if from_model:
            written += [text_of(content.get("arguments")) or event.text for event in item_events]
        if from_model and item_events and (tokens := tokens_of(content, written, trained)) is not None:
            item_events[-1] = item_events[-1].model_copy(update={"tokens": tokens})
            # A model call's tokens are on its last item, so the model's next item belongs to another call.
            writing = False
        yield from item_events


def _item_events(item: Any, turn: int) -> Iterator[Event]:
    if not isinstance(item, dict):
        yield Event(speaker="other", text=item if isinstance(item, str) else pretty(item), turn=turn)
        return
    kind = text_of(item.get("type")) or "message"
    if kind == "message" or (kind not in ("reasoning",) and "role" in item and "content" in item):
        yield from _message(item, turn)
    elif kind == "reasoning":
        yield from _reasoning(item, turn)
    elif kind.endswith("_output"):
        yield _result(item, kind, turn)
    elif kind.endswith("_call"):
        yield from _call(item, kind, turn)
    else:
        yield Event(speaker="other", text=pretty(item), name=kind, turn=turn)


def _message(item: Json, turn: int) -> Iterator[Event]:
    speaker = _ROLES.get(text_of(item.get("role")), "other")
    for key in ("reasoning_content", "reasoning"):
        if isinstance(item.get(key), str) and item[key]:
            yield Event(speaker="reasoning", text=item[key], turn=turn)
    text = text_of_content(item.get("content"))
    if speaker != "answer":
        yield Event(speaker=speaker, text=text, name=text_of(item.get("name")), turn=turn)
        return
    pieces = thoughts(text)
    for thought, piece in pieces:
        yield Event(speaker="reasoning" if thought else "answer", text=piece, turn=turn)
    if not pieces:
        yield Event(speaker="answer", text=text, turn=turn)


def _reasoning(item: Json, turn: int) -> Iterator[Event]:
    summary, content = text_of_content(item.get("summary")), text_of_content(item.get("content"))
    if summary:
        yield Event(speaker="reasoning", text=summary, name="summary", turn=turn)
    if content or not summary:
        hidden = "(encrypted)" if item.get("encrypted_content") else ""
        yield Event(speaker="reasoning", text=content or hidden, turn=turn)


def _call(item: Json, kind: str, turn: int) -> Iterator[Event]:
    name = text_of(item.get("name")) or kind.removesuffix("_call")
    call = text_of(item.get("call_id")) or text_of(item.get("id"))
    content = next((item[key] for key in _CALLS if item.get(key) is not None), None)
    yield Event(speaker="call", text=_readable(content), name=name, call=call, turn=turn)
    # Tools that the model's endpoint runs have the result in the same item, unlike the environment's tools.
    results = {key: item[key] for key in _RESULTS if item.get(key) not in (None, "", [])}
    if results:
        result = next(iter(results.values())) if len(results) == 1 else results
        text = text_of_content(result) if isinstance(result, str | list) else pretty(result)
        yield Event(speaker="result", text=text, name=name, call=call, turn=turn)


def _result(item: Json, kind: str, turn: int) -> Event:
    output = item.get("output")
    text = text_of_content(output)
    parsed = _parsed(text) if isinstance(output, str) else output
    return Event(
        speaker="result",
        text=text,
        name=text_of(item.get("name")) or ("" if kind == "function_call_output" else kind.removesuffix("_call_output")),
        call=text_of(item.get("call_id")),
        turn=turn,
        reward=number(mapping(parsed).get("reward"), None),
    )


def _readable(content: Any) -> str:
    if not isinstance(content, str):
        return "" if content is None else pretty(content)
    value = None if _HUGE_INTEGER.search(content) else _parsed(content)
    return pretty(value) if isinstance(value, dict | list) else content


def _parsed(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return sanitize(lenient(text.encode("utf-8", "replace")))
    except ValueError:
        return None


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
