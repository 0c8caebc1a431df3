"""Builds the response about a run's labels, authors and agreement."""

from __future__ import annotations

from collections import Counter

import numpy as np

from rollyard.analysis.metrics.solved import which_solved
from rollyard.analysis.notes.agreement_of_verdicts import (
    PairAgreement,
    VerifierAgreement,
    between_authors,
    correct_from,
    with_verifier,
)
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


class AgreementView(Record):
    """GET /api/runs/{run}/notes/agreement."""

    labels: list[LabelLine]
    """The most frequent first."""
    authors: list[AuthorLine]
    """Those with the most rollouts first."""
    solved_rule: str
    """What counts as solved; empty if it is undefined."""
    correct_from: float | None
    """The reward from which an override means correct; None if it is unknown."""
    verifier: VerifierAgreement
    pairs: tuple[PairAgreement, ...]


def agreement_view(run: RunFile) -> AgreementView:
    """Return the labels of the run's rollouts, and how their verdicts agree."""
    columns = run.listing.columns
    notes = run.notes.current().by_offset
    rule, flags = which_solved(columns, run.threshold)
    solved = None if flags is None else flags.astype(float)
    least = correct_from(columns, run.threshold)
    success = dict(
        zip(
            columns.offset.tolist(), (np.full(len(columns), np.nan) if solved is None else solved).tolist(), strict=True
        )
    )
    labels = Counter(label for one in notes.values() for label in one.labels)
    lines = []
    for label, rollouts in sorted(labels.items(), key=lambda pair: (-pair[1], pair[0])):
        having = {offset: one for offset, one in notes.items() if label in one.labels}
        measured = [success[offset] for offset in having if offset in success]
        authors = dict.fromkeys(author for one in having.values() for name, author in one.added if name == label)
        lines.append(
            LabelLine(
                label=label,
                rollouts=rollouts,
                authors=list(authors),
                measured=len(measured),
                solved=None if solved is None else int(sum(measured)),
            )
        )
    return AgreementView(
        labels=lines,
        authors=_authors(run),
        solved_rule=rule if solved is not None else "",
        correct_from=least,
        verifier=with_verifier(columns, solved, notes, least),
        pairs=between_authors(columns, notes, least),
    )


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
