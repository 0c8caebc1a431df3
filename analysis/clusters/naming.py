"""Names clusters by the terms that distinguish them from all other rollouts.

Terms are ranked by their contribution to the Kullback-Leibler divergence between the cluster and the others, p ln(p /
q), where p and q are the shares of rollouts that contain the term (Kullback & Leibler 1951; q is smoothed). Rollouts
that did not fail are among the others, so that a run whose failures are all alike gets a name, too. Weighted log-odds
(Monroe, Colaresi & Quinn 2008) preferred terms that most other rollouts have as well, because nearly every rollout has
some of the terms about its behaviour.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rollyard.analysis.clusters.documents import Kind, shown_term
from rollyard.analysis.clusters.vectors import Matrix, Vocabulary
from rollyard.analysis.metrics.loader.columns import Floats, Ints

_LEAST_SHARE = 0.4
"""A term must occur in this share of the cluster."""
_PRIOR = 1.0
"""Number of rollouts that are added to the others, with the frequency of the term in all rollouts."""
_MOST_TERMS = 8
_PER_KIND = {Kind.BEHAVIOUR: 4, Kind.CALL: 2, Kind.WORD: 3, Kind.REASON: 2}
"""Maximum number of terms of each kind."""
_SAME = 0.02
"""Terms of one kind whose shares differ by less say the same: parts of one phrase."""
_ORDER = tuple(_PER_KIND)
_COUNT = re.compile(r"^a (?=final message)|^\d+ or more (?=tool calls)| of \d+ or more words$")


@dataclass(frozen=True)
class Term:
    """A term that distinguishes a cluster."""

    text: str
    score: float
    """Contribution to the divergence."""
    inside: float
    """Share of the cluster's rollouts that have it."""
    outside: float
    """Share of the other rollouts that have it."""


def distinguishing_terms(vocabulary: Vocabulary, presence: Matrix, labels: Ints, others: Matrix) -> list[list[Term]]:
    """Return the terms of each cluster, most distinguishing first. `others`: the terms of rollouts that did not
    fail.
    """
    groups = int(labels.max(initial=-1)) + 1
    total = _counts(presence) + _counts(others)
    documents = presence.shape[0] + others.shape[0]
    return [_terms(vocabulary, presence[labels == at], total, documents) for at in range(groups)]


def _counts(presence: Matrix) -> Floats:
    return np.asarray(presence.sum(axis=0), np.float64).ravel()


def _terms(vocabulary: Vocabulary, members: Matrix, total: Floats, documents: int) -> list[Term]:
    count, size = _counts(members), members.shape[0]
    rest = documents - size
    inside = count / size
    outside = (total - count) / rest if rest else total / documents
    expected = (total - count + _PRIOR * total / documents) / (rest + _PRIOR)
    score = contribution(inside, expected)
    candidates = np.flatnonzero((inside >= _LEAST_SHARE) & (score > 0))

    def rank(at: int) -> tuple[float, int, int, str]:
        term = vocabulary.terms[at]
        return -round(float(score[at]), 2), _ORDER.index(Kind(term[0])), -len(term.split()), term

    if not len(candidates):  # all rollouts are alike, and there are no others
        candidates = np.flatnonzero(inside >= 1 - _LEAST_SHARE)
    chosen: list[int] = []
    for at in sorted(candidates.tolist(), key=rank):
        kind = vocabulary.terms[at][0]
        same = [other for other in chosen if vocabulary.terms[other][0] == kind]
        if len(same) < _PER_KIND[Kind(kind)] and not any(
            _repeats(vocabulary, inside, outside, at, other) for other in same
        ):
            chosen.append(at)
        if len(chosen) == _MOST_TERMS:
            break
    return [
        Term(shown_term(vocabulary.terms[at]), float(score[at]), float(inside[at]), float(outside[at])) for at in chosen
    ]


def contribution(inside: Floats, outside: Floats) -> Floats:
    """Return p ln(p / q) for the shares of terms."""
    return np.asarray(inside * np.log(np.maximum(inside, 1e-12) / np.maximum(outside, 1e-12)), np.float64)


def _repeats(vocabulary: Vocabulary, inside: Floats, outside: Floats, at: int, other: int) -> bool:
    """Return whether a term says the same as another of its kind: it shares a word and has equal shares, or is a
    part.
    """
    term, before = vocabulary.terms[at], vocabulary.terms[other]
    if term[0] == Kind.BEHAVIOUR:
        return _subject(term) == _subject(before)
    words, known = set(term[1:].split()), set(before[1:].split())
    equal = abs(inside[at] - inside[other]) < _SAME and abs(outside[at] - outside[other]) < _SAME
    return words <= known or known <= words or bool(equal and (term[0] == Kind.REASON or words & known))


def _subject(term: str) -> str:
    """Return what a term about behaviour counts, such as `final message`, or the term itself."""
    return _COUNT.sub("", term[1:])
