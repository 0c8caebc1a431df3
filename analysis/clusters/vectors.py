"""Weights the terms of documents: a unit vector for each, whose products are cosine similarities.

Weights are TF-IDF with binary term frequencies and a damped inverse document frequency, sqrt(0.7 + ln((1 + n) / (1 +
df))), so that a rare word does not outweigh what most rollouts of a group have in common. Each kind of term has a fixed
share of the vector, whatever the number of its terms: what a rollout did counts most, the words of a long answer no
more than those of a short one. The shares were chosen on one recording of `tests/support/failing_rows.py` and on the
demo's rollouts of Sokoban. With calls 0.4 to 0.5, words 0.5 to 0.6 and reasons 0.7 to 0.8, all seven kinds were told
apart without an error; with less for all three, kinds were merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollyard.analysis.clusters.documents import Kind
from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.records.io.optional import load

EXTRA = "clusters"
FEATURE = "Clustering failed rollouts"
_SHARES = {Kind.BEHAVIOUR: 1.0, Kind.CALL: 0.5, Kind.WORD: 0.6, Kind.REASON: 0.8}
_SMOOTH = 0.7
_MOST_TERMS = 20_000
_LEAST_TASKS = 3
"""A term of a run with as many tasks must occur in this many of them: others tell the tasks apart, not the failures."""

Document = Mapping[str, int]
Matrix = Any
"""A scipy.sparse.csr_matrix. SciPy is installed with scikit-learn and has no types."""


@dataclass(frozen=True)
class Vocabulary:
    """The terms that count, in alphabetical order, with their weights."""

    terms: tuple[str, ...]
    weight: Floats
    kind: Ints
    """Index into Kind of each term."""
    norm: Floats
    """Typical length of the vector of each kind. Shorter ones are not extended, so that a single weak term stays
    weak."""

    @classmethod
    def of(cls, documents: Sequence[Document], tasks: Ints, least: int) -> Vocabulary:
        """Build the vocabulary of failed rollouts. `tasks`: the task of each. `least`: the size of the smallest
        cluster, which no rarer term can name.
        """
        counts = Counter[str]()
        seen: dict[str, set[int]] = {}
        for document, task in zip(documents, tasks.tolist(), strict=True):
            counts.update(document.keys())
            for term in document:
                known = seen.setdefault(term, set())
                if len(known) < _LEAST_TASKS:
                    known.add(task)
        needed = min(_LEAST_TASKS, len(np.unique(tasks)))
        kept = [term for term, count in counts.most_common() if count >= least and len(seen[term]) >= needed]
        terms = tuple(sorted(kept[:_MOST_TERMS]))
        frequency = np.array([counts[term] for term in terms], np.float64)
        weight = np.sqrt(_SMOOTH + np.log((1 + len(documents)) / (1 + frequency)))
        kind = np.array([_KINDS.index(Kind(term[0])) for term in terms], np.int64)
        vocabulary = cls(terms, weight, kind, np.ones(len(_KINDS)))
        norm = vocabulary._norms(vocabulary.presence(documents))
        typical = [np.sqrt((own[own > 0] ** 2).mean()) if (own > 0).any() else 1.0 for own in norm]
        return cls(terms, weight, kind, np.array(typical))

    def presence(self, documents: Sequence[Document]) -> Matrix:
        """Return which terms each document contains, as a sparse matrix of ones."""
        index = {term: at for at, term in enumerate(self.terms)}
        columns, ends = list[int](), [0]
        for document in documents:
            columns.extend(sorted(at for term in document if (at := index.get(term)) is not None))
            ends.append(len(columns))
        data = np.ones(len(columns), np.float64)
        return _sparse().csr_matrix((data, np.array(columns, np.int64), ends), shape=(len(documents), len(self.terms)))

    def vectors(self, presence: Matrix) -> Matrix:
        """Return the unit vector of each document; zero for one without known terms."""
        sparse, parts = _sparse(), []
        for number, (own, norm) in enumerate(zip(self._norms(presence), self.norm.tolist(), strict=True)):
            columns = np.flatnonzero(self.kind == number)
            scale = _SHARES[_KINDS[number]] / np.maximum(own, norm)
            parts.append((columns, sparse.diags(scale) @ presence[:, columns] @ sparse.diags(self.weight[columns])))
        order = np.argsort(np.concatenate([columns for columns, _ in parts]), kind="stable")
        joined = sparse.hstack([part for _, part in parts]).tocsc()[:, order].tocsr()
        length = np.sqrt(np.asarray(joined.multiply(joined).sum(axis=1)).ravel())
        return (sparse.diags(1 / np.maximum(length, 1e-12)) @ joined).tocsr()

    def _norms(self, presence: Matrix) -> Iterator[Floats]:
        """Yield the length of each document's vector, for each kind."""
        for number in range(len(_KINDS)):
            columns = np.flatnonzero(self.kind == number)
            yield np.sqrt(np.asarray(presence[:, columns] @ (self.weight[columns] ** 2)).ravel())


_KINDS = tuple(_SHARES)


def _sparse() -> Any:
    load("sklearn", EXTRA, FEATURE)  # names the extra if it is missing
    return load("scipy.sparse", EXTRA, FEATURE)
