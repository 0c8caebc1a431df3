"""Builds the responses about notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rollyard.analysis.viewer.notes.note_records import (
    LabelCount,
    NotesView,
    ShownLabel,
    ShownNotes,
    ShownText,
    ShownVerdict,
)
from rollyard.analysis.viewer.notes.run_notes import PlacedNotes, RunNotes
from rollyard.records.notes.current_state import RolloutNotes

NO_NOTES = RolloutNotes()
READ_ONLY_FILE = "an exported file is read only"


def notes_view(notes: RunNotes, since: str, author: str, why_read_only: str) -> NotesView:
    """Return the notes that changed since a version, or all of them if `since` is empty or too old."""
    placed = notes.current()
    changed = placed.changed_since(since)
    return NotesView(
        version=placed.version,
        complete=changed is None,
        rollouts=[shown(placed, offset) for offset in (placed.by_offset if changed is None else changed)],
        labels=label_counts(placed.by_offset.values()),
        author=author,
        why_read_only=why_read_only or notes.file.why_not_writable(),
        path=str(notes.file.path),
        lost=placed.lost,
        ignored=placed.content.ignored_count,
        ignored_lines=list(placed.content.ignored),
        error=placed.content.error or placed.error,
    )


def shown(placed: PlacedNotes, offset: int) -> ShownNotes:
    """Return what applies to the row at a byte offset."""
    task, repeat = placed.keys[offset]
    return shown_notes(placed.by_offset.get(offset, NO_NOTES), task, repeat)


def shown_notes(notes: RolloutNotes, task: int, repeat: int) -> ShownNotes:
    """Return what applies to a rollout, without the identities that its records contain."""
    return ShownNotes(
        task=task,
        repeat=repeat,
        labels=[
            ShownLabel(id=one.id, author=one.author, time=one.time, label=one.label) for one in notes.added.values()
        ],
        verdicts=[
            ShownVerdict(id=one.id, author=one.author, time=one.time, verdict=one.verdict, reason=one.reason)
            for one in notes.judged.values()
        ],
        texts=[ShownText(id=one.id, author=one.author, time=one.time, text=one.text) for one in notes.texts],
    )


def label_counts(all_notes: Iterable[RolloutNotes]) -> list[LabelCount]:
    """Return the labels with their numbers of rollouts, the most frequent first, then in alphabetical order."""
    counts = Counter(label for notes in all_notes for label in notes.labels)
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [LabelCount(label=label, rollouts=rollouts) for label, rollouts in ordered]
