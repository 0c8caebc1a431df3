"""Defines the records of /api/runs/{run}/notes. They contain untrusted text of people and programs."""

from __future__ import annotations

from pydantic import AwareDatetime, Field

from rollyard.records.notes.record import MAX_TEXT, Name, Verdict
from rollyard.records.types import Record


class ShownLabel(Record):
    id: str
    author: str
    time: AwareDatetime
    label: str


class ShownVerdict(Record):
    id: str
    author: str
    time: AwareDatetime
    verdict: Verdict
    reason: str


class ShownText(Record):
    id: str
    author: str
    time: AwareDatetime
    text: str


class ShownNotes(Record):
    """What currently applies to one rollout."""

    task: int
    repeat: int
    labels: list[ShownLabel]
    """One for each label and author."""
    verdicts: list[ShownVerdict]
    """The last one of each author; the last of the list is the override."""
    texts: list[ShownText]


class LabelCount(Record):
    label: str
    rollouts: int


class NotesView(Record):
    """GET /api/runs/{run}/notes?since=: the notes of the run. The page polls it."""

    version: str
    """The value of `since` in the next request."""
    complete: bool
    """Whether `rollouts` has all rollouts with notes; otherwise, those that changed since then, perhaps to nothing."""
    rollouts: list[ShownNotes]
    labels: list[LabelCount]
    """All labels, the most frequent first."""
    author: str
    """The author of records without another one: the user who started the viewer."""
    why_read_only: str
    """Why nothing can be written; empty if it can."""
    path: str
    lost: int
    """Number of rollouts with records that are not in the rollout file."""
    ignored: int
    """Number of lines of the file that are not records."""
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
    """The response to NoteRequest."""

    id: str
    """The id of the new record, which a removal names."""
    rollout: ShownNotes
