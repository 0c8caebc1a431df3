"""Server-sent events made from a finished answer, in the order the official clients expect.

Nothing arrives earlier by it: it lets clients that ask for a stream read a server that answers at once. One event
carries a whole text or a whole set of arguments, since cutting up what is already there buys nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from services.types import Json

Events = Callable[[Json], bytes]
"""A whole answer -> the whole body of its stream."""

_DONE = b"data: [DONE]\n\n"
_FIELD = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text", "summary_text": "text"}


def response_events(response: Json) -> bytes:
    """The Responses stream of a finished Response."""
    pieces: list[bytes] = []
    for number, (kind, fields) in enumerate(_events(response)):
        data = orjson.dumps({"type": kind, "sequence_number": number, **fields})
        pieces.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
    return b"".join(pieces)


def _events(response: Json) -> Iterator[tuple[str, Json]]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(response["output"]):
        where: Json = {"output_index": index}
        yield "response.output_item.added", {**where, "item": _blank(item)}
        where["item_id"] = item.get("id") or ""
        if item["type"] == "function_call":
            arguments = item["arguments"]
            yield "response.function_call_arguments.delta", {**where, "delta": arguments}
            yield "response.function_call_arguments.done", {**where, "name": item["name"], "arguments": arguments}
        elif item["type"] in ("message", "reasoning"):
            for number, part in enumerate(item.get("summary") or ()):
                yield from _part_events(part, {**where, "summary_index": number}, "reasoning_summary_part")
            for number, part in enumerate(item.get("content") or ()):
                yield from _part_events(part, {**where, "content_index": number}, "content_part")
        yield "response.output_item.done", {"output_index": index, "item": item}
    status = response.get("status")
    end = status if status in ("incomplete", "failed") else "completed"
    yield f"response.{end}", {"response": response}


def _blank(item: Json) -> Json:
    """The item as it stands when its first event is sent: known, and empty."""
    blank = {**item, "status": "in_progress"}
    for field, empty in (("arguments", ""), ("content", []), ("summary", [])):
        if isinstance(item.get(field), type(empty)):
            blank[field] = empty
    return blank


def _part_events(part: Json, where: Json, group: str) -> Iterator[tuple[str, Json]]:
    kind = part["type"]
    field = _FIELD.get(kind)
    if field is None:
        return
    text = part[field]
    name = "reasoning_summary_text" if kind == "summary_text" else kind
    extra = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
    empty = {**part, field: "", **({"logprobs": []} if extra else {})}
    yield f"response.{group}.added", {**where, "part": empty}
    yield f"response.{name}.delta", {**where, "delta": text, **extra}
    yield f"response.{name}.done", {**where, field: text, **extra}
    yield f"response.{group}.done", {**where, "part": part}


def chat_chunks(completion: Json, with_usage: bool = False) -> bytes:
    """The Chat Completions stream of a finished completion."""
    base = {key: value for key, value in completion.items() if key not in ("choices", "usage")}
    base["object"] = "chat.completion.chunk"
    pieces: list[bytes] = []

    def send(choices: list[Json], **extra: Any) -> None:
        pieces.append(b"data: %b\n\n" % orjson.dumps({**base, "choices": choices, **extra}))

    for choice in completion["choices"]:
        index, message = choice["index"], choice["message"]
        delta = {key: value for key, value in message.items() if key != "tool_calls" and value is not None}
        said = {key: value for key, value in choice.items() if key not in ("message", "finish_reason")}
        send([{**said, "delta": delta, "finish_reason": None}])
        for number, call in enumerate(message.get("tool_calls") or ()):
            tool_calls = [{**call, "index": number}]
            send([{"index": index, "delta": {"tool_calls": tool_calls}, "finish_reason": None}])
        send([{"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}])
    if with_usage:
        send([], usage=completion.get("usage"))
    pieces.append(_DONE)
    return b"".join(pieces)
