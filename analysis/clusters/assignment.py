"""Builds clusters from a sample of failed rollouts, then assigns every failed rollout to the most similar one.

Building takes time and memory that grow with the square of the number of rollouts, so that at most SAMPLE are used;
fewer than that are all used. Assigning takes time in proportion to their number and keeps three numbers of each. A
rollout belongs to a cluster if its mean similarity to the sampled members is at least as large as the cut requires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from rollyard.analysis.clusters.centers import Assigned, Centers
from rollyard.analysis.clusters.document_reader import documents_at
from rollyard.analysis.clusters.failed_rollouts import Failed
from rollyard.analysis.clusters.grouping import Grouping, group, smallest_group
from rollyard.analysis.clusters.naming import Term, distinguishing_terms
from rollyard.analysis.clusters.vectors import Vocabulary
from rollyard.analysis.metrics.loader.columns import Ints
from rollyard.analysis.metrics.loader.parallel_reader import reading_pool
from rollyard.records.errors import OperatorError, RunError

SAMPLE = 2000
"""Maximum number of failed rollouts from which clusters are built. Their distances take 32 MB."""
_CONTRAST = 500
"""Maximum number of other rollouts with which names are contrasted."""
_CHUNK = 1000
_BUILDING = 0.2
"""Share of the work that building is considered to be."""
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Built:
    """Clusters without their rollouts."""

    centers: Centers
    terms: list[list[Term]]
    """The distinguishing terms of each cluster."""
    silhouette: float | None
    sampled: int


def build_and_assign(
    runs: Sequence[Failed], *, workers: int = 1, progress: Progress | None = None, sample: int = SAMPLE
) -> tuple[Built, list[Assigned]]:
    """Cluster the failed rollouts of all runs together. `progress` is called with the share of the work that is done.
    `sample`: maximum number of rollouts from which clusters are built.

    Raises OperatorError if scikit-learn is missing or a file cannot be read, and RunError if a process was killed.
    """
    report = progress or (lambda _: None)
    places = _sampled(runs, sample)
    try:
        documents = [
            documents_at(run.path, run.run.columns.offset[place]) for run, place in zip(runs, places, strict=True)
        ]
        built = _built(runs, places, documents)
        total, done, assigned = max(1, sum(int(run.mask.sum()) for run in runs)), 0, list[Assigned]()
        for run, known in zip(runs, documents, strict=True):
            parts = []
            for part in _assigned(run, known, built.centers, workers):
                parts.append(part)
                done += len(part.label)
                report(1.0 - (1.0 - _BUILDING) * (1.0 - done / total))
            assigned.append(Assigned.joined(parts))
    except OSError as error:
        raise OperatorError(f"rollout file {error.filename!r} cannot be read: {error.strerror or error}") from error
    except BrokenProcessPool as error:
        raise RunError(
            "a process that reads rollouts was killed, possibly for lack of memory; use one process with --workers 1"
        ) from error
    return built, assigned


def _sampled(runs: Sequence[Failed], sample: int) -> list[Ints]:
    """Return the indexes of sampled failed rollouts of each run; of several runs about as many each."""
    chance = np.random.default_rng(0)
    failed = [np.flatnonzero(run.mask) for run in runs]
    share, left = {}, sample
    for number, at in enumerate(sorted(range(len(runs)), key=lambda one: len(failed[one]))):
        share[at] = min(len(failed[at]), left // (len(runs) - number))
        left -= share[at]
    return [np.sort(chance.choice(own, share[at], replace=False)) for at, own in enumerate(failed)]


def _built(runs: Sequence[Failed], places: Sequence[Ints], documents: Sequence[list[Counter[str]]]) -> Built:
    joined = [document for own in documents for document in own]
    tasks = np.concatenate([_task_keys(run, place) for run, place in zip(runs, places, strict=True)])
    least = smallest_group(len(joined))
    vocabulary = Vocabulary.of(joined, tasks, least)
    presence = vocabulary.presence(joined)
    found: Grouping = group(vocabulary, presence, least)
    vectors = vocabulary.vectors(presence)
    members = [vectors[found.labels == at] for at in range(found.count)]
    centers = np.array([np.asarray(own.mean(axis=0)).ravel() for own in members]).reshape(
        found.count, len(vocabulary.terms)
    )
    others = vocabulary.presence(_contrasts(runs) if found.count else [])
    terms = distinguishing_terms(vocabulary, presence, found.labels, others)
    return Built(Centers(vocabulary, centers, 1.0 - found.cut), terms, found.silhouette, len(joined))


def _task_keys(run: Failed, place: Ints) -> Ints:
    """Return numbers that are equal for rollouts of one task, also of another run of the same tasks."""
    columns = run.run.columns
    return np.where(columns.content[place] != 0, columns.content[place], columns.task[place])


def _contrasts(runs: Sequence[Failed]) -> list[Counter[str]]:
    found = []
    for run in runs:
        others = np.flatnonzero(~run.mask)
        spread = np.unique(np.linspace(0, len(others) - 1, min(_CONTRAST // len(runs), len(others))).astype(np.intp))
        found += documents_at(run.path, run.run.columns.offset[others[spread]])
    return found


def _assigned(run: Failed, known: list[Counter[str]], centers: Centers, workers: int) -> Iterator[Assigned]:
    """Yield the clusters of the failed rollouts in their order. `known`: the documents of the sampled ones."""
    offsets = run.run.columns.offset[run.mask]
    if len(known) == len(offsets):  # all were sampled
        yield centers.assign(known)
        return
    chunks = [offsets[at : at + _CHUNK] for at in range(0, len(offsets), _CHUNK)]
    if workers == 1:
        yield from (centers.assign_rows(run.path, chunk) for chunk in chunks)
        return
    with reading_pool(min(workers, len(chunks))) as pool:
        yield from pool.map(centers.assign_rows, [run.path] * len(chunks), chunks)
