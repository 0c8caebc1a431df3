"""Finds groups of similar documents without a given number of groups.

Average linkage (UPGMA; Sokal & Michener 1958) on cosine distances, cut where the groups are most distinct: of several
cuts, the one with the largest mean silhouette (Rousseeuw 1987), in which rollouts of no group count as zero. A cut of
0.35 means that the rollouts of a group resemble each other by at least 0.65 on average, so that the cut also bounds how
different the rollouts of a group can be. HDBSCAN has no such bound: it divided seven known kinds of failure into 18 to
25 groups, and one kind into six to nine.

Kaufman & Rousseeuw (1990, table 4) call a mean silhouette of up to 0.25 no substantial structure, and one above 0.5 a
reasonable one. Below 0.25, or if most rollouts belong to no group, only groups with a tenth of the rollouts and a
silhouette of 0.5 are accepted. If almost all rollouts are similar, they are one group unless dividing them reaches 0.5.
A small group must have a silhouette of 0.5, because the closest few of many rollouts resemble each other by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollyard.analysis.clusters.vectors import EXTRA, FEATURE, Matrix, Vocabulary
from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.records.io.optional import load

CUTS = (0.30, 0.35, 0.40, 0.45)
"""Average distances of two rollouts above which they are not one group."""
_SUBSTANTIAL = 0.25
_REASONABLE = 0.5
_ALMOST_ALL = 0.9
_EQUAL = 0.02
"""Of cuts whose silhouettes differ by less, the larger one is taken: fewer groups."""
_SMALL = 1 / 25
_LARGE = 1 / 10
_HALF = 0.5


@dataclass(frozen=True)
class Grouping:
    """The group of each document."""

    labels: Ints
    """Groups are numbered from 0, largest first; -1 if a document belongs to none."""
    cut: float
    silhouette: float | None
    """Mean over all documents, those of no group counted as zero; None if there are fewer than two groups."""

    @property
    def count(self) -> int:
        return int(self.labels.max(initial=-1)) + 1


def smallest_group(documents: int) -> int:
    """Return the number of rollouts that make a group: five, or 2% of the documents."""
    return max(5, round(0.02 * documents))


def group(vocabulary: Vocabulary, presence: Matrix, least: int) -> Grouping:
    """Group documents. `presence`: their terms; `least`: the size of the smallest group."""
    documents = presence.shape[0]
    if documents < least or not len(vocabulary.terms):
        return Grouping(np.full(documents, -1, np.int64), CUTS[0], None)
    distance = _distances(vocabulary.vectors(presence))
    tree = _tree(distance)
    found = [_at(tree, distance, cut, least) for cut in CUTS]
    best = max(one.silhouette or 0.0 for one in found)
    whole = next((one for one in reversed(found) if (one.labels == 0).mean() >= _ALMOST_ALL), None)
    if whole is not None and best < _REASONABLE:
        return whole
    chosen = next(one for one in reversed(found) if (one.silhouette or 0.0) >= best - _EQUAL)
    if best >= _SUBSTANTIAL and (chosen.labels >= 0).mean() >= _HALF:
        return chosen
    return _at(tree, distance, CUTS[0], least, only_large=True)


def _at(tree: Floats, distance: Floats, cut: float, least: int, *, only_large: bool = False) -> Grouping:
    labels = _numbered(_labels(tree, cut), least)
    documents = len(labels)
    if len(np.unique(labels)) < 2:
        return Grouping(labels, cut, None)
    # The rollouts of no group count as one more group, from which the others must be distinct.
    samples = load("sklearn.metrics", EXTRA, FEATURE).silhouette_samples(distance, labels, metric="precomputed")
    kept: list[int] = []
    for at in range(int(labels.max()) + 1):
        own = samples[labels == at]
        share = len(own) / documents
        is_distinct = own.mean() >= _REASONABLE
        if (is_distinct and share >= _LARGE) if only_large else (is_distinct or share >= _SMALL):
            kept.append(at)
    number = {at: new for new, at in enumerate(kept)}
    relabelled = np.array([number.get(at, -1) for at in labels.tolist()], np.int64)
    silhouette = float(samples[relabelled >= 0].sum()) / documents if kept else None
    return Grouping(relabelled, cut, silhouette)


def _distances(vectors: Matrix) -> Floats:
    distance = 1.0 - (vectors @ vectors.T).toarray()
    distance = np.maximum((distance + distance.T) / 2, 0.0)
    np.fill_diagonal(distance, 0.0)
    return np.asarray(distance, np.float64)


def _tree(distance: Floats) -> Floats:
    hierarchy = load("scipy.cluster.hierarchy", EXTRA, FEATURE)
    condensed = load("scipy.spatial.distance", EXTRA, FEATURE).squareform(distance, checks=False)
    return np.asarray(hierarchy.linkage(condensed, "average"), np.float64)


def _labels(tree: Floats, cut: float) -> Ints:
    hierarchy = load("scipy.cluster.hierarchy", EXTRA, FEATURE)
    return np.asarray(hierarchy.fcluster(tree, cut, "distance"), np.int64)


def _numbered(labels: Ints, least: int) -> Ints:
    """Number the groups of at least `least` documents, largest first; -1 for documents of smaller ones."""
    names, first, inverse, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    order = [at for at in np.lexsort((first, -sizes)).tolist() if sizes[at] >= least]
    number = np.full(len(names), -1, np.int64)
    number[order] = np.arange(len(order))
    return number[inverse]
