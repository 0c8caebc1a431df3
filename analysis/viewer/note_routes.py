"""Routes for notes: what applies to a run's rollouts, new records, labels and authors, and what is still unlabelled.

Requests from web pages of other origins are refused by `Access`, as for all routes of the viewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi import Query as Parameters
from pydantic import Field, ValidationError
from starlette.types import Scope

from rollyard.analysis.metrics.solved import which_solved
from rollyard.analysis.viewer.responses import json_response
from rollyard.analysis.viewer.run_file import RunFile, row_of
from rollyard.analysis.viewer.run_notes import RunNotes
from rollyard.records.audit import AuditLog, Origin
from rollyard.records.errors import RunError
from rollyard.records.note_records import MAX_TEXT, Name, RolloutNotes, Verdict, new_record, ref_of, what_is_wrong
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Json, Record

MAX_BODY = 256 << 10
"""Maximum size of a request in bytes: the longest note and reason, escaped."""
READ_ONLY = "this viewer is read only (--read-only)"
NO_NOTES = RolloutNotes()
OriginOf = Callable[[Scope], Origin]
"""Returns who sent a request."""
READ_ONLY_FILE = "an exported file is read only"


def note_router(
    find: Callable[[int], RunFile], origin_of: OriginOf, *, author: str, read_only: bool = False
) -> APIRouter:
    """Return the routes. `find` returns a run by its number; `author` is that of records without another one."""
    router = APIRouter(prefix="/api/runs/{run}/notes")
    why_read_only = READ_ONLY if read_only else ""

    @router.get("")
    async def notes(run: int, since: Annotated[str, Parameters(max_length=80)] = "") -> Response:
        return await json_response(lambda: notes_view(find(run).notes, since, author, why_read_only))

    @router.get("/summary")
    async def summary(run: int) -> Response:
        return await json_response(lambda: notes_summary(find(run)))

    wanted = {"required": True, "content": {"application/json": {"schema": NoteRequest.model_json_schema()}}}

    @router.post("", openapi_extra={"requestBody": wanted})
    async def write(run: int, request: Request) -> Response:
        if read_only:
            raise HTTPException(403, f"{READ_ONLY}: notes cannot be written")
        try:
            wanted = NoteRequest.model_validate_json(await _body(request))
        except ValidationError as error:
            raise HTTPException(422, what_is_wrong(error)) from error
        return await json_response(lambda: _write(find(run), wanted, author, origin_of(request.scope)))

    return router


def _write(run: RunFile, wanted: NoteRequest, author: str, origin: Origin) -> NoteWritten:
    fields = wanted.model_dump(exclude_none=True, exclude={"task", "repeat", "kind", "author"})
    task, repeat, table = wanted.task, wanted.repeat, run.table
    index = table.find(task, repeat)
    row = None if index is None else row_of(run, table, index)
    if index is None or row is None:
        raise HTTPException(404, f"task {task}, repeat {repeat} has no row, so that nothing can be noted about it")
    ref = ref_of(row, task, repeat)
    try:
        record = new_record(wanted.kind, wanted.author or author, ref, **fields)
    except ValueError as error:
        raise HTTPException(422, str(error)) from error
    try:
        run.notes.file.append(record)
    except RunError as error:
        raise HTTPException(409, str(error)) from error
    act = {"id": record.id, "kind": record.kind, "author": record.author, "task": task, "repeat": repeat}
    audit = AuditLog(RolloutPaths(run.path).audit, "", "ng_viewer", mode=0o666)  # as of the notes: others write, too
    audit.write("POST notes", origin, act, 200)
    found = run.notes.current().by_offset.get(int(table.offset[index]), NO_NOTES)
    return NoteWritten(id=record.id, rollout=shown_notes(found, task, repeat))


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"the body has more than {MAX_BODY:,} bytes; a note has at most 20,000 characters")
    return body


class ShownNotes(Record):
    """What currently applies to one rollout: records with their `id`, `author` and `time`."""

    task: int
    repeat: int
    labels: list[Json]
    """One for each label and author."""
    verdicts: list[Json]
    """The last one of each author; the last of the list is the override."""
    texts: list[Json]


class LabelCount(Record):
    label: str
    rollouts: int


class NotesView(Record):
    """GET /api/runs/{run}/notes?since=: the notes of the run. The page polls it."""

    version: str
    """The value of `since` in the next request."""
    complete: bool
    """Whether `rollouts` has all rollouts with notes; otherwise it is empty, because nothing has changed since then."""
    rollouts: list[ShownNotes]
    labels: list[LabelCount]
    author: str
    """The author of records without another one: the user who started the viewer."""
    why_read_only: str
    """Why nothing can be written; empty if it can."""
    path: str
    lost: int
    """Number of rollouts with records that are not in the rollout file."""
    ignored: int
    ignored_lines: list[str]
    error: str


class NoteRequest(Record):
    """POST /api/runs/{run}/notes: a new record about a rollout."""

    task: int
    repeat: int
    kind: str = Field(max_length=20)
    """`note`, `label`, `unlabel`, `override` or `removal`."""
    author: Name | None = None
    text: str | None = Field(default=None, max_length=MAX_TEXT)
    label: Name | None = None
    verdict: Verdict | None = None
    reason: str | None = Field(default=None, max_length=MAX_TEXT)
    removes: str | None = Field(default=None, max_length=80)


class NoteWritten(Record):
    id: str
    """The id of the new record, which a removal names."""
    rollout: ShownNotes


def notes_view(notes: RunNotes, since: str, author: str, why_read_only: str) -> NotesView:
    """Return all notes, or none if they are still those of the version `since`."""
    placed = notes.current()
    has_changed = since != placed.version
    found = placed.by_offset
    return NotesView(
        version=placed.version,
        complete=has_changed,
        rollouts=[shown_notes(one, *placed.keys[offset]) for offset, one in found.items() if has_changed],
        labels=[LabelCount(label=label, rollouts=count) for label, count in label_counts(found.values())],
        author=author,
        why_read_only=why_read_only or notes.file.why_not_writable(),
        path=str(notes.file.path),
        lost=placed.lost,
        ignored=placed.content.ignored_count,
        ignored_lines=list(placed.content.ignored),
        error=placed.content.error or placed.error,
    )


def shown_notes(notes: RolloutNotes, task: int, repeat: int) -> ShownNotes:
    def kept(records: Iterable[Record], *fields: str) -> list[Json]:
        return [one.model_dump(mode="json", include={"id", "author", "time", *fields}) for one in records]

    return ShownNotes(
        task=task,
        repeat=repeat,
        labels=kept(notes.added.values(), "label"),
        verdicts=kept(notes.judged.values(), "verdict", "reason"),
        texts=kept(notes.texts, "text"),
    )


def label_counts(all_notes: Iterable[RolloutNotes]) -> list[tuple[str, int]]:
    """Return the labels with their numbers of rollouts, the most frequent first, then in alphabetical order."""
    counts = Counter(label for notes in all_notes for label in notes.labels)
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


class LabelLine(Record):
    label: str
    rollouts: int
    authors: list[str]
    measured: int
    solved: int | None
    """Number of the measured ones that are solved; None if "solved" is undefined."""


class AuthorLine(Record):
    author: str
    rollouts: int
    """Number of rollouts with a label, a verdict or a note of this author."""
    labels: int
    verdicts: int
    notes: int


class NotesSummary(Record):
    labels: list[LabelLine]
    authors: list[AuthorLine]


def notes_summary(run: RunFile) -> NotesSummary:
    columns = run.listing.columns
    notes = run.notes.current().by_offset
    _, solved = which_solved(columns, run.threshold)
    flags = [False] * len(columns) if solved is None else solved.tolist()
    success = dict(zip(columns.offset.tolist(), flags, strict=True))
    lines = []
    for label, rollouts in label_counts(notes.values()):
        having = {offset: one for offset, one in notes.items() if label in one.labels}
        found = [success[offset] for offset in having if offset in success]
        authors = dict.fromkeys(author for one in having.values() for name, author in one.added if name == label)
        count = None if solved is None else sum(found)
        lines.append(
            LabelLine(label=label, rollouts=rollouts, authors=list(authors), measured=len(found), solved=count)
        )
    rollouts_of, labels, verdicts, texts = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for one in notes.values():
        rollouts_of.update(one.annotators)
        labels.update(author for _, author in one.added)
        verdicts.update(list(one.judged))
        texts.update(note.author for note in one.texts)
    by_author = [
        AuthorLine(author=name, rollouts=count, labels=labels[name], verdicts=verdicts[name], notes=texts[name])
        for name, count in sorted(rollouts_of.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return NotesSummary(labels=lines, authors=by_author)
