"""Builds the response about a run's labels and the authors of its notes."""

from __future__ import annotations

from collections import Counter

from rollyard.analysis.metrics.solved import which_solved
from rollyard.analysis.viewer.index.run_file import RunFile
from rollyard.records.types import Record


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
    """GET /api/runs/{run}/notes/summary."""

    labels: list[LabelLine]
    """The most frequent first."""
    authors: list[AuthorLine]
    """Those with the most rollouts first."""


def notes_summary(run: RunFile) -> NotesSummary:
    """Return the labels of the run's rollouts, and what each author wrote."""
    columns = run.listing.columns
    notes = run.notes.current().by_offset
    _, solved = which_solved(columns, run.threshold)
    flags = [False] * len(columns) if solved is None else solved.tolist()
    success = dict(zip(columns.offset.tolist(), flags, strict=True))
    labels = Counter(label for one in notes.values() for label in one.labels)
    lines = []
    for label, rollouts in sorted(labels.items(), key=lambda pair: (-pair[1], pair[0])):
        having = {offset: one for offset, one in notes.items() if label in one.labels}
        successes = [success[offset] for offset in having if offset in success]
        authors = dict.fromkeys(author for one in having.values() for name, author in one.added if name == label)
        lines.append(
            LabelLine(
                label=label,
                rollouts=rollouts,
                authors=list(authors),
                measured=len(successes),
                solved=None if solved is None else sum(successes),
            )
        )
    return NotesSummary(labels=lines, authors=_authors(run))


def _authors(run: RunFile) -> list[AuthorLine]:
    rollouts, labels, verdicts, texts = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for one in run.notes.current().by_offset.values():
        rollouts.update(one.annotators)
        labels.update(author for _, author in one.added)
        verdicts.update(list(one.judged))
        texts.update(note.author for note in one.texts)
    return [
        AuthorLine(author=author, rollouts=count, labels=labels[author], verdicts=verdicts[author], notes=texts[author])
        for author, count in sorted(rollouts.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
