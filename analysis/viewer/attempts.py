"""The failed attempts of a run: their list, and each with what had been said until it failed.

The conversation is the key `partial` of a row of X_failures.jsonl; `events_until_failure` shows where it failed and
what is missing of it.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response
from pydantic import Field

from rollyard.analysis.charts.charts import Chart
from rollyard.analysis.viewer.api_records import Attempt, Event
from rollyard.analysis.viewer.conversation import events_of
from rollyard.analysis.viewer.growing_index import Failed, attempt_of
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.responses import json_response
from rollyard.analysis.viewer.rollout_list import MAX_LINES
from rollyard.analysis.viewer.run_file import Replays, RunFile, token_charts
from rollyard.analysis.viewer.untrusted_values import row_facts
from rollyard.records.replay import Replay
from rollyard.records.terminal import duration
from rollyard.records.types import Json, Record, items, mapping, number, text_of, whole_number

_NOT_RECORDED = (
    "Nothing is known of the conversation: it was not recorded. Reasons: an older version, --max-partial-bytes 0, an "
    "agent of another framework, or an agent that died before its first model call."
)
"""Of longer episodes the durations in the middle are not recorded, so that they cannot be assigned to turns."""


class AttemptLine(Attempt):
    task: int
    repeat: int
    at: int
    """Position among the failed attempts at this rollout, which is part of the address of its page."""


class AttemptPage(Record):
    """GET /api/runs/{run}/attempts?start=&limit=&kind=&finding=: failed attempts, latest first."""

    total: int
    start: int
    lines: list[AttemptLine]
    kinds: dict[str, int]
    """Failure kind -> number of attempts in the whole file."""
    searched: float = 1.0
    """Share of the file that has been examined for the finding. The page polls until it is 1."""


class Sequel(Record):
    """GET /api/runs/{run}/sequel/{task}/{repeat}: what has become of a rollout so far."""

    measured: bool
    attempts: int


class AttemptView(Record):
    """GET /api/runs/{run}/attempts/{task}/{repeat}/{at}: one failed attempt."""

    run: int
    line: AttemptLine
    events: list[Event]
    """What was said; the last event, `failure`, is where it failed. Empty if nothing is known."""
    replay: Replay | None
    charts: list[Chart] = Field(default_factory=list)
    note: str
    facts: Json = Field(default_factory=dict)
    others: int
    measured: bool
    """Whether another attempt at the rollout has a reward."""


def attempt_router(file_index: FileIndex, replays: Replays) -> APIRouter:
    api = APIRouter(prefix="/api/runs/{run}")

    @api.get("/attempts")
    async def attempts(
        run: int,
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_LINES)] = 100,
        kind: str | None = None,
        finding: str | None = None,
    ) -> Response:
        def page() -> AttemptPage:
            opened = file_index.find(run)
            if finding is None:
                return attempt_page(opened, start, limit, kind)
            found, searched = opened.findings.named(finding)
            keys = set() if found is None else set(zip(found.task.tolist(), found.repeat.tolist(), strict=True))
            return attempt_page(opened, start, limit, kind, keys).model_copy(update={"searched": searched})

        return await json_response(page)

    @api.get("/attempts/{task}/{repeat}/{at}")
    async def attempt(run: int, task: int, repeat: int, at: int) -> Response:
        return await json_response(lambda: attempt_view(file_index.find(run), task, repeat, at, replays))

    @api.get("/sequel/{task}/{repeat}")
    async def what_became_of_it(run: int, task: int, repeat: int) -> Response:
        return await json_response(lambda: sequel(file_index.find(run), task, repeat))

    return api


def attempt_page(
    run: RunFile, start: int, limit: int, kind: str | None, wanted: set[tuple[int, int]] | None = None
) -> AttemptPage:
    """Return failed attempts, latest first; with `wanted`, only those at these tasks and repeats. Raises OSError."""
    failed = run.attempts.failed
    counts = np.bincount(failed.kind.codes, minlength=len(failed.kind.names)).tolist()
    kinds = {name: count for name, count in zip(failed.kind.names, counts, strict=True) if count}
    mask = np.ones(len(failed.task), bool)
    if kind is not None:
        codes = [code for code, name in enumerate(failed.kind.names) if name == kind]
        mask &= np.isin(failed.kind.codes, codes)
    if wanted is not None:
        keys = zip(failed.task.tolist(), failed.repeat.tolist(), strict=True)
        mask &= np.array([key in wanted for key in keys], bool)
    indexes = np.flatnonzero(mask)[::-1]
    lines = [_line(run, failed, index) for index in indexes[start : start + limit].tolist()]
    return AttemptPage(total=len(indexes), start=start, lines=lines, kinds=kinds)


def attempt_view(run: RunFile, task: int, repeat: int, at: int, replays: Replays) -> AttemptView:
    """Return the failed attempt number `at` at a rollout. Raises OSError, and HTTPException (404) if there is none."""
    offsets = run.attempts.failed.offsets(task, repeat)
    if not 0 <= at < len(offsets):
        raise HTTPException(404, f"task {task}, repeat {repeat} has no failed attempt {at + 1} in the part read so far")
    row = run.attempts.row(offsets[at])
    line = AttemptLine(**attempt_of(row).model_dump(), task=task, repeat=repeat, at=at)
    partial = mapping(row.get("partial"))
    played = mapping(partial.get("row"))
    events = events_until_failure(partial, line) if played else []
    return AttemptView(
        run=run.number,
        line=line,
        events=events,
        charts=token_charts(events),
        replay=replays(dict(played)) if played else None,
        note=missing_note(partial) if played else _NOT_RECORDED,
        facts=row_facts(played),
        others=len(offsets),
        measured=run.table.is_measured(task, repeat),
    )


def sequel(run: RunFile, task: int, repeat: int) -> Sequel:
    attempts = len(run.attempts.failed.offsets(task, repeat))
    return Sequel(measured=run.table.is_measured(task, repeat), attempts=attempts)


def _line(run: RunFile, failed: Failed, index: int) -> AttemptLine:
    task, repeat = int(failed.task[index]), int(failed.repeat[index])
    before = (failed.task[:index] == task) & (failed.repeat[:index] == repeat)
    row = run.attempts.row(int(failed.offset[index]))
    return AttemptLine(**attempt_of(row).model_dump(), task=task, repeat=repeat, at=int(before.sum()))


def events_until_failure(partial: Json, attempt: Attempt) -> list[Event]:
    events = _with_gap(mapping(partial.get("row")), partial)
    answered = {event.call for event in events if event.speaker == "result"}
    pending = next((event for event in events if event.speaker == "call" and event.call not in answered), None)
    text = "\n\n".join(filter(None, (_waiting(partial, pending), attempt.detail)))
    turn = max([whole_number(partial.get("turn"), least=0) or 0, *(event.turn for event in events)])
    call = pending.call if pending else ""
    return [*events, Event(speaker="failure", name=attempt.kind, text=text, turn=turn, call=call)]


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
    params, response = {**params, "input": start[:after]}, {"output": output[: max(0, after - len(start))]}
    before = events_of({**row, "responses_create_params": params, "response": response})
    events = events_of(row)
    gap = Event(speaker="other", name="not recorded", text=f"{removed:,} items", turn=before[-1].turn if before else 0)
    rest = events[len(before) :]
    finished = (whole_number(partial.get("turn"), least=0) or 0) - (partial.get("stage") == "model")
    shift = max(0, finished - max((event.turn for event in rest), default=finished))
    moved = [event.model_copy(update={"turn": event.turn + shift}) if event.turn else event for event in rest]
    return [*before, gap, *moved]


def _waiting(partial: Json, pending: Event | None) -> str:
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
