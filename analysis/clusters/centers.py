"""Finds the most similar cluster of documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollyard.analysis.clusters.document_reader import documents_at
from rollyard.analysis.clusters.vectors import Vocabulary
from rollyard.analysis.metrics.loader.columns import Floats, Ints


@dataclass(frozen=True)
class Assigned:
    """The cluster of each of several rollouts."""

    label: Ints
    """-1 if a rollout belongs to none."""
    similarity: Floats
    """Mean similarity to the sampled members of its cluster, or of the most similar one."""
    margin: Floats
    """By how much it is nearer to its cluster than to another one, or to belonging to none, whichever is nearer."""

    @classmethod
    def joined(cls, parts: Sequence[Assigned]) -> Assigned:
        """Concatenate parts."""
        if not parts:
            return cls(np.empty(0, np.int64), np.empty(0), np.empty(0))
        names = ("label", "similarity", "margin")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True)
class Centers:
    """What is needed to assign documents; sent to other processes."""

    vocabulary: Vocabulary
    means: Floats
    """Mean vector of the sampled members of each cluster. Its product with a document is the document's mean similarity
    to the members."""
    least: float
    """Smallest mean similarity of a member."""

    def assign(self, documents: Sequence[Counter[str]]) -> Assigned:
        """Return the cluster of each document."""
        if not len(self.means):
            return Assigned(np.full(len(documents), -1, np.int64), np.zeros(len(documents)), np.zeros(len(documents)))
        vectors = self.vocabulary.vectors(self.vocabulary.presence(documents))
        similarity = np.asarray(vectors @ self.means.T, np.float64)
        label = similarity.argmax(axis=1)
        ordered = np.sort(similarity, axis=1)
        best = ordered[:, -1]
        second = np.maximum(ordered[:, -2], self.least) if ordered.shape[1] > 1 else np.full(len(best), self.least)
        # Rounding must not decide about rollouts that are exactly as similar as required.
        inside = best >= self.least - 1e-9
        return Assigned(np.where(inside, label, -1), best, best - second)

    def assign_rows(self, path: Path, offsets: Ints) -> Assigned:
        """Return the cluster of the rows at these byte offsets. Raises OSError."""
        return self.assign(documents_at(path, offsets))
