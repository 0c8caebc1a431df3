"""Builds the events of a Responses stream, in the order and format that the official clients expect.

    response.created, response.in_progress
    for each item:  response.output_item.added
                      message, reasoning: for each part ...part.added, deltas, ....done, ...part.done
                      function_call:      arguments.delta, arguments.done
                    response.output_item.done
    response.completed | response.incomplete | response.failed, error

`whole` builds them from a finished Response, so that servers that do not stream, such as agents, can serve clients that
request a stream. Incremental streams use the other functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from rollyard.records.types import Json, Problem

SSE = b"text/event-stream; charset=utf-8"
STREAM_HEADERS = ((b"cache-control", b"no-cache"),)
Event = tuple[str, Json]
"""The event's type and its other fields."""

TEXT_FIELD = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text", "summary_text": "text"}
"""Type of a part that has its own events -> the field that contains its text."""


def encoded(events: Iterable[Event], first: int = 0) -> bytes:
    """Encode the events as bytes, numbered from `first`."""
    pieces: list[bytes] = []
    for number, (kind, fields) in enumerate(events, first):
        data = orjson.dumps({"type": kind, "sequence_number": number, **fields})
        pieces.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
    return b"".join(pieces)


def whole(response: Json) -> bytes:
    """Return the stream of a finished Response. Each text is a single delta, because splitting it has no benefit."""
    return encoded(_whole(response))


def _whole(response: Json) -> Iterator[Event]:
    yield from began(response)
    for index, item in enumerate(response["output"]):
        yield item_added(item, index)
        location: Json = {"output_index": index, "item_id": item.get("id") or ""}
        if item["type"] == "function_call":
            yield arguments_delta(location, item["arguments"])
            yield arguments_done(location, item)
        for group in ("summary", "content") if item["type"] in ("message", "reasoning") else ():
            for number, part in enumerate(item.get(group) or ()):
                if part["type"] not in TEXT_FIELD:
                    continue
                part_location = {**location, f"{group}_index": number}
                yield part_added(part_location, part)
                yield part_delta(part_location, part, part[TEXT_FIELD[part["type"]]])
                yield from part_done(part_location, part)
        yield item_done(item, index)
    yield ended(response)


def began(response: Json) -> Iterator[Event]:
    """Yield the first events, which contain the response without output."""
    empty = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield "response.created", {"response": empty}
    yield "response.in_progress", {"response": empty}


def ended(response: Json) -> Event:
    """Return the last event, which contains the complete response."""
    status = response.get("status")
    return f"response.{status if status in ('incomplete', 'failed') else 'completed'}", {"response": response}


def broken_off(response: Json | None, problem: Problem) -> Iterator[Event]:
    """Yield the last events of an aborted response. `response`: what was generated so far; None before the first event.

    OpenAI's clients raise the nested `error` of the last event; they ignore a failure in an ordinary event.
    """
    if response is not None:
        error = {"code": "server_error", "message": problem.detail}
        yield "response.failed", {"response": {**response, "status": "failed", "error": error}}
    error_fields = problem.model_dump(mode="json")
    yield (
        "error",
        {"code": error_fields["code"], "message": error_fields["message"], "param": None, "error": error_fields},
    )


def item_added(item: Json, index: int) -> Event:
    """Return the event that announces an item, without its content."""
    blank = {**item, "status": "in_progress"}
    for field, empty in (("arguments", ""), ("content", []), ("summary", [])):
        if isinstance(item.get(field), type(empty)):
            blank[field] = empty
    return "response.output_item.added", {"output_index": index, "item": blank}


def item_done(item: Json, index: int) -> Event:
    return "response.output_item.done", {"output_index": index, "item": item}


def arguments_delta(location: Json, delta: str) -> Event:
    return "response.function_call_arguments.delta", {**location, "delta": delta}


def arguments_done(location: Json, item: Json) -> Event:
    done = {"name": item["name"], "arguments": item["arguments"]}
    return "response.function_call_arguments.done", {**location, **done}


def part_added(location: Json, part: Json) -> Event:
    """Return the event that announces an empty part of a message or summary. `location` contains its indices."""
    empty = {**part, TEXT_FIELD[part["type"]]: "", **_logprobs(part, [])}
    return f"response.{_group(part)}.added", {**location, "part": empty}


def part_delta(location: Json, part: Json, delta: str, logprobs: list[Json] | None = None) -> Event:
    """Return the event that adds text to a part. `logprobs`: those of the delta; by default, those of the part."""
    return f"response.{_name(part)}.delta", {**location, "delta": delta, **_logprobs(part, logprobs)}


def part_done(location: Json, part: Json) -> Iterator[Event]:
    """Yield the events with the complete part."""
    field = TEXT_FIELD[part["type"]]
    yield f"response.{_name(part)}.done", {**location, field: part[field], **_logprobs(part)}
    yield f"response.{_group(part)}.done", {**location, "part": part}


def _name(part: Json) -> str:
    return "reasoning_summary_text" if part["type"] == "summary_text" else str(part["type"])


def _group(part: Json) -> str:
    return "reasoning_summary_part" if part["type"] == "summary_text" else "content_part"


def _logprobs(part: Json, given: list[Json] | None = None) -> Json:
    if part["type"] != "output_text":
        return {}
    return {"logprobs": (part.get("logprobs") or []) if given is None else given}
