"""Converts the key `partial` of a failed attempt to events: what was said, what is missing, and where it failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollyard.analysis.viewer.api.api_records import Attempt, Event
from rollyard.analysis.viewer.api.conversation_events import events_of
from rollyard.analysis.viewer.attempts.attempt_records import TurnTime
from rollyard.records.io.durations import duration
from rollyard.records.io.json_values import items, mapping, number, text_of, whole_number
from rollyard.records.types import Json

UNKNOWN = "Nothing is known of the conversation: {why}."
_RECORDED_SPANS = 1000
"""Of longer episodes the durations in the middle are not recorded, so that they cannot be assigned to turns."""


def events_until_failure(partial: Json, attempt: Attempt) -> list[Event]:
    """Return the events of the conversation, followed by the failure."""
    row = mapping(partial.get("row"))
    events = _with_gap(row, partial)
    pending = _pending_call(events)
    waiting = _waiting(partial, pending)
    turn = max([whole_number(partial.get("turn"), least=0) or 0, *(event.turn for event in events)], default=0)
    text = f"{waiting}\n\n{attempt.detail}" if waiting else attempt.detail
    call = pending.call if pending else ""
    return [*events, Event(speaker="failure", name=attempt.kind, text=text, turn=turn, call=call)]


def turn_times(partial: Json) -> list[TurnTime]:
    """Return the durations of the turns; empty if they are not recorded."""
    spans = [
        (text_of(span[0]), number(span[1], 0.0))
        for span in items(partial.get("timings"))
        if isinstance(span, list) and len(span) == 2
    ]
    if len(spans) >= _RECORDED_SPANS:
        return []
    turns: list[TurnTime] = []
    for stage, seconds in spans:
        if stage == "model":
            turns.append(TurnTime(turn=len(turns) + 1, model_s=seconds, tools_s=0.0))
        elif stage == "tool" and turns:
            turns[-1] = turns[-1].model_copy(update={"tools_s": round(turns[-1].tools_s + seconds, 6)})
    started, waited = whole_number(partial.get("turn"), least=0) or 0, number(partial.get("stage_s"), None)
    if partial.get("stage") == "model" and started == len(turns) + 1 and waited is not None:
        turns.append(TurnTime(turn=started, model_s=None, tools_s=0.0))
    return turns


def missing_note(partial: Json) -> str:
    """Return what the record lacks, as sentences; empty if it is complete."""
    omitted, notes = mapping(partial.get("omitted")), list[str]()
    if partial.get("source") == "model_server":
        notes.append(
            "The agent could not be asked any more: this is the last request that a model server received. The model's "
            "answer to it, and what happened after it, are lost."
        )
    if removed := whole_number(omitted.get("items"), least=1):
        notes.append(f"{removed:,} items in the middle were not recorded, because of the size limit.")
    if shortened := whole_number(omitted.get("texts"), least=1):
        notes.append(f"{shortened:,} long texts lack their middle.")
    if tokens := whole_number(omitted.get("tokens"), least=1):
        notes.append(f"The tokens of {tokens:,} model calls were not recorded.")
    if fields := [text_of(name) for name in items(omitted.get("fields"))]:
        notes.append(f"Fields that were not recorded: {', '.join(fields)}.")
    return " ".join(notes)


def _with_gap(row: Json, partial: Json) -> list[Event]:
    """Return the events of the row, with an event where items are missing, and the right turns after it."""
    omitted = mapping(partial.get("omitted"))
    removed, after = whole_number(omitted.get("items"), least=1), whole_number(omitted.get("after"), least=0)
    if removed is None or after is None:
        return events_of(row)
    params, response = mapping(row.get("responses_create_params")), mapping(row.get("response"))
    start, output = items(params.get("input")), items(response.get("output"))
    before = events_of(_cut(row, start[:after], output[: max(0, after - len(start))]))
    events = events_of(row)
    gap = Event(speaker="other", name="not recorded", text=f"{removed:,} items", turn=before[-1].turn if before else 0)
    rest = events[len(before) :]
    finished = (whole_number(partial.get("turn"), least=0) or 0) - (partial.get("stage") == "model")
    shift = max(0, finished - max((event.turn for event in rest), default=finished))
    moved = [event.model_copy(update={"turn": event.turn + shift}) if event.turn else event for event in rest]
    return [*before, gap, *moved]


def _cut(row: Json, start: Sequence[Any], output: Sequence[Any]) -> Json:
    params = {**mapping(row.get("responses_create_params")), "input": list(start)}
    return {**row, "responses_create_params": params, "response": {"output": list(output)}}


def _pending_call(events: Sequence[Event]) -> Event | None:
    """Return the first tool call without a result."""
    answered = {event.call for event in events if event.speaker == "result"}
    return next((event for event in events if event.speaker == "call" and event.call not in answered), None)


def _waiting(partial: Json, pending: Event | None) -> str:
    """Return what the episode was waiting for, as a sentence; empty if that is unknown."""
    stage, server = text_of(partial.get("stage")), text_of(partial.get("server")) or "a server"
    seconds = number(partial.get("stage_s"), None)
    since = f" for {duration(seconds)}" if seconds is not None else ""
    turn = whole_number(partial.get("turn"), least=1)
    if stage == "model":
        return f"Waited{since} for {server} to answer model call {turn or ''}".rstrip() + "."
    if stage == "tool":
        tool = f" to run {pending.name}" if pending and pending.name else " to run a tool"
        return f"Waited{since} for {server}{tool}."
    if stage == "seed":
        return f"Waited{since} for {server} to start the session."
    return f"Waited{since} for the verdict of {server}." if stage == "verify" else ""
