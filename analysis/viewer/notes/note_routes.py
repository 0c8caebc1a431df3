"""Routes for notes: what applies to a run's rollouts, and new records.

Requests from web pages of other origins are refused by `Access`, as for all routes of the viewer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from rollyard.analysis.viewer.api.rollout_view import row_of
from rollyard.analysis.viewer.index.run_file import RunFile
from rollyard.analysis.viewer.notes.agreement_view import agreement_view
from rollyard.analysis.viewer.notes.next_unlabelled import NextQuery, next_unlabelled
from rollyard.analysis.viewer.notes.note_records import NoteRequest, NoteWritten
from rollyard.analysis.viewer.notes.notes_view import NO_NOTES, notes_view, shown_notes
from rollyard.records.errors import RunError
from rollyard.records.notes.record import RolloutRef, new_record, what_is_wrong
from rollyard.records.notes.rollout_identity import ref_of
from rollyard.records.types import Record

MAX_BODY = 256 << 10
"""Maximum size of a request in bytes: the longest note and reason, escaped."""
READ_ONLY = "this viewer is read only (--read-only)"


def note_router(find: Callable[[int], RunFile], *, author: str, read_only: bool = False) -> APIRouter:
    """Return the routes. `find` returns a run by its number; `author` is that of records without another one."""
    router = APIRouter(prefix="/api/runs/{run}/notes")
    why_read_only = READ_ONLY if read_only else ""

    @router.get("")
    async def notes(run: int, since: Annotated[str, Query(max_length=80)] = "") -> Response:
        return await _json(lambda: notes_view(find(run).notes, since, author, why_read_only))

    @router.get("/agreement")
    async def agreement(run: int) -> Response:
        return await _json(lambda: agreement_view(find(run)))

    @router.get("/next")
    async def next_rollout(run: int, query: Annotated[NextQuery, Query()]) -> Response:
        return await _json(lambda: next_unlabelled(find(run), query, query.author or author))

    @router.post("")
    async def write(run: int, request: Request) -> Response:
        if read_only:
            raise HTTPException(403, f"{READ_ONLY}: notes cannot be written")
        try:
            wanted = NoteRequest.model_validate_json(await _body(request))
        except ValidationError as error:
            raise HTTPException(422, what_is_wrong(error)) from error
        return await _json(lambda: _write(find(run), wanted, author))

    return router


def _write(run: RunFile, wanted: NoteRequest, author: str) -> NoteWritten:
    fields = wanted.model_dump(exclude_none=True, exclude={"task", "repeat", "kind", "author"})
    ref, offset = _rollout(run, wanted.task, wanted.repeat)
    try:
        record = new_record(wanted.kind, wanted.author or author, ref, **fields)
    except ValueError as error:
        raise HTTPException(422, str(error)) from error
    try:
        run.notes.file.append(record)
    except RunError as error:
        raise HTTPException(409, str(error)) from error
    found = run.notes.current().by_offset.get(offset, NO_NOTES)
    return NoteWritten(id=record.id, rollout=shown_notes(found, wanted.task, wanted.repeat))


def _rollout(run: RunFile, task: int, repeat: int) -> tuple[RolloutRef, int]:
    """Return the identity of a rollout and the byte offset of its row."""
    table = run.table
    index = table.find(task, repeat)
    row = None if index is None else row_of(run, table, index)
    if index is None or row is None:
        raise HTTPException(404, f"task {task}, repeat {repeat} has no row, so that nothing can be noted about it")
    return ref_of(row, task, repeat), int(table.offset[index])


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"the body has more than {MAX_BODY:,} bytes; a note has at most 20,000 characters")
    return body


async def _json(make: Callable[[], Record]) -> Response:
    body = await run_in_threadpool(lambda: make().model_dump_json())
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})
