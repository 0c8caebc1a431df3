"""The events of a Responses stream, in the order and shape the official clients expect.

    response.created, response.in_progress
    for each item:  response.output_item.added
                      message, reasoning: for each part ...part.added, deltas, ....done, ...part.done
                      function_call:      arguments.delta, arguments.done
                    response.output_item.done
    response.completed | response.incomplete | response.failed, error

`whole` makes them from a finished Response, so that a client that asks for a stream can read a server that answers at
once: model servers without a stream of their own, and agents. What makes them as the answer grows uses the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from rollyard.services.types import Json, Problem

SSE = b"text/event-stream; charset=utf-8"
STREAM_HEADERS = ((b"cache-control", b"no-cache"),)
Event = tuple[str, Json]
"""Its type and its other fields."""

TEXT_FIELD = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text", "summary_text": "text"}
"""Where a part of each type that has events of its own keeps its text."""


def encoded(events: Iterable[Event], first: int = 0) -> bytes:
    """The events as bytes, numbered from `first` on."""
    pieces: list[bytes] = []
    for number, (kind, fields) in enumerate(events, first):
        data = orjson.dumps({"type": kind, "sequence_number": number, **fields})
        pieces.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
    return b"".join(pieces)


def whole(response: Json) -> bytes:
    """The stream of a finished Response. One delta carries a whole text: cutting up what is there buys nothing."""
    return encoded(_whole(response))


def _whole(response: Json) -> Iterator[Event]:
    yield from began(response)
    for index, item in enumerate(response["output"]):
        yield item_added(item, index)
        where: Json = {"output_index": index, "item_id": item.get("id") or ""}
        if item["type"] == "function_call":
            yield arguments_delta(where, item["arguments"])
            yield arguments_done(where, item)
        for group in ("summary", "content") if item["type"] in ("message", "reasoning") else ():
            for number, part in enumerate(item.get(group) or ()):
                if part["type"] not in TEXT_FIELD:
                    continue
                place = {**where, f"{group}_index": number}
                yield part_added(place, part)
                yield part_delta(place, part, part[TEXT_FIELD[part["type"]]])
                yield from part_done(place, part)
        yield item_done(item, index)
    yield ended(response)


def began(response: Json) -> Iterator[Event]:
    """What comes first: the response, known and empty."""
    empty = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield "response.created", {"response": empty}
    yield "response.in_progress", {"response": empty}


def ended(response: Json) -> Event:
    """What comes last."""
    status = response.get("status")
    return f"response.{status if status in ('incomplete', 'failed') else 'completed'}", {"response": response}


def broken_off(response: Json | None, problem: Problem) -> Iterator[Event]:
    """What comes last where the answer will never be whole; `response` is what there is of it, None before the first.

    The `error` inside of the last one is for OpenAI's clients, which raise it: they take no notice of a failure that
    comes as an ordinary event.
    """
    if response is not None:
        error = {"code": "server_error", "message": problem.detail}
        yield "response.failed", {"response": {**response, "status": "failed", "error": error}}
    told = problem.model_dump(mode="json")
    yield "error", {"code": told["code"], "message": told["message"], "param": None, "error": told}


def item_added(item: Json, index: int) -> Event:
    """The item as it stands at its beginning: known, and empty."""
    blank = {**item, "status": "in_progress"}
    for field, empty in (("arguments", ""), ("content", []), ("summary", [])):
        if isinstance(item.get(field), type(empty)):
            blank[field] = empty
    return "response.output_item.added", {"output_index": index, "item": blank}


def item_done(item: Json, index: int) -> Event:
    """The whole item."""
    return "response.output_item.done", {"output_index": index, "item": item}


def arguments_delta(where: Json, delta: str) -> Event:
    """More of a call's arguments."""
    return "response.function_call_arguments.delta", {**where, "delta": delta}


def arguments_done(where: Json, item: Json) -> Event:
    """All of them."""
    done = {"name": item["name"], "arguments": item["arguments"]}
    return "response.function_call_arguments.done", {**where, **done}


def part_added(where: Json, part: Json) -> Event:
    """A part of a message or a summary, empty; `where` names its place."""
    empty = {**part, TEXT_FIELD[part["type"]]: "", **_logprobs(part, [])}
    return f"response.{_group(part)}.added", {**where, "part": empty}


def part_delta(where: Json, part: Json, delta: str, logprobs: list[Json] | None = None) -> Event:
    """More of its text; the logprobs are those of the delta, or the part's own."""
    return f"response.{_name(part)}.delta", {**where, "delta": delta, **_logprobs(part, logprobs)}


def part_done(where: Json, part: Json) -> Iterator[Event]:
    """The whole part."""
    field = TEXT_FIELD[part["type"]]
    yield f"response.{_name(part)}.done", {**where, field: part[field], **_logprobs(part)}
    yield f"response.{_group(part)}.done", {**where, "part": part}


def _name(part: Json) -> str:
    return "reasoning_summary_text" if part["type"] == "summary_text" else str(part["type"])


def _group(part: Json) -> str:
    return "reasoning_summary_part" if part["type"] == "summary_text" else "content_part"


def _logprobs(part: Json, given: list[Json] | None = None) -> Json:
    if part["type"] != "output_text":
        return {}
    return {"logprobs": (part.get("logprobs") or []) if given is None else given}
