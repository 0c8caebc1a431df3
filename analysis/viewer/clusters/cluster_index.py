"""ClusterIndex: clusters failed rollouts in the background, of one run or of two, and keeps the results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rollyard.analysis.clusters.cluster_records import ClusterComparison, Clusters
from rollyard.analysis.clusters.compare import FoundChanges, changes_of
from rollyard.analysis.clusters.find_clusters import FoundClusters, clusters_of
from rollyard.analysis.metrics.loader.columns import Ints
from rollyard.analysis.viewer.rollout_list import Query
from rollyard.analysis.viewer.run_file import RunFile
from rollyard.records.errors import RollyardError

_WAIT_S = 0.3
_GROWTH = 1.2
"""Clusters are computed again when a file has grown by this factor. Their rollouts stay those of the previous ones
until the new ones are complete."""
_MANY = 20_000
"""Number of failed rollouts from which several processes read them; starting them takes about a second."""
_MOST_KEPT = 8
"""Maximum number of results that are kept."""


@dataclass(frozen=True)
class Place:
    """What is clustered: one run or two, and which rollouts count as failed."""

    runs: tuple[int, ...]
    where: str = ""


@dataclass
class _Job:
    """`lock` is held while fields change."""

    covers: tuple[tuple[int, int], ...] = ()
    """Generation and number of bytes of each file that `found` covers, or that are being clustered."""
    found: FoundClusters | FoundChanges | None = None
    share: float = 0.0
    error: str = ""
    thread: threading.Thread | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Progress:
    """The state of a result."""

    found: FoundClusters | FoundChanges | None
    share: float
    """Share of the work that is done, if a result is being computed; otherwise 1."""
    error: str


class ClusterIndex:
    """Thread-safe. A place is clustered from its first request on, and again when its files have grown."""

    def __init__(self, find_run: Callable[[int], RunFile], *, workers: int = 1) -> None:
        """`workers`: number of processes that read many rollouts."""
        self._find_run, self._workers = find_run, workers
        self._jobs: dict[Place, _Job] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def progress(self, place: Place) -> Progress:
        """Start or continue to cluster. Waits a moment, so that small files are complete in the first response.

        Raises UnknownRun.
        """
        runs = [self._find_run(number) for number in place.runs]
        job = self._job(place)
        with job.lock:
            covers = tuple((run.file.generation, run.file.snapshot.end) for run in runs)
            if _is_new(job.covers, covers) and not _is_alive(job) and not self._closing.is_set():
                job.covers, job.share, job.error = covers, 0.0, ""
                job.thread = threading.Thread(target=self._work, args=(place, runs, job), name="clusters", daemon=True)
                job.thread.start()
            thread = job.thread
        if thread is not None:
            thread.join(_WAIT_S)
        with job.lock:
            return Progress(job.found, min(job.share, 0.99) if _is_alive(job) else 1.0, job.error)

    def members(self, place: Place, run: int, key: str) -> tuple[Ints | None, float]:
        """Return the byte offsets of the rollouts of one cluster in a run, ascending, and the share of the work that is
        done. None if there is no such cluster, or none yet. Raises UnknownRun.
        """
        now = self.progress(place)
        if now.found is None:
            return None, now.share
        by_key = now.found.members
        own = by_key if isinstance(by_key, dict) else by_key[place.runs.index(run)]
        return own.get(key), 1.0

    def select(self, run: int, query: Query) -> tuple[Ints, float]:
        """Return the rollouts of a query's cluster, as `RunFile` needs them; none if the run is not one of
        `clusters_of`.
        """
        runs = tuple(map(int, query.clusters_of.split("-"))) if query.clusters_of else (run,)
        if run not in runs:
            return np.empty(0, np.int64), 1.0
        members, share = self.members(Place(runs, query.clusters_where), run, query.cluster)
        return (np.empty(0, np.int64) if members is None else members), share

    def close(self) -> None:
        """Stop clustering. Threads end at their next step."""
        self._closing.set()

    def _job(self, place: Place) -> _Job:
        with self._lock:
            job = self._jobs.pop(place, None) or _Job()
            self._jobs[place] = job
            idle = [one for one, kept in self._jobs.items() if not _is_alive(kept)]
            for oldest in idle[: max(0, len(self._jobs) - _MOST_KEPT)]:
                if oldest != place:
                    del self._jobs[oldest]
            return job

    def _work(self, place: Place, runs: list[RunFile], job: _Job) -> None:
        def report(share: float) -> None:
            if self._closing.is_set():
                raise _Closed
            job.share = share

        found: FoundClusters | FoundChanges
        where = place.where or None
        try:
            numbers = [run.numbers_before(end) for run, (_, end) in zip(runs, job.covers, strict=True)]
            workers = self._workers if sum(len(one.columns) for one in numbers) >= _MANY else 1
            if len(numbers) == 1:
                found = clusters_of(numbers[0], where=where, workers=workers, progress=report)
            else:
                found = changes_of(numbers[0], numbers[1], where=where, workers=workers, progress=report)
        except _Closed:
            return
        except RollyardError as error:
            with job.lock:
                job.error = str(error)
            return
        with job.lock:
            job.found = found


def record_of(progress: Progress) -> Clusters | ClusterComparison | None:
    """Return the record of a result, if there is one."""
    return None if progress.found is None else progress.found.record


def _is_new(before: tuple[tuple[int, int], ...], now: tuple[tuple[int, int], ...]) -> bool:
    """Return whether a file was replaced or has grown enough to be clustered again."""
    if not before:
        return True
    return any(
        old[0] != new[0] or new[1] > max(old[1] * _GROWTH, old[1] + 1) for old, new in zip(before, now, strict=True)
    )


def _is_alive(job: _Job) -> bool:
    return job.thread is not None and job.thread.is_alive()


class _Closed(Exception):
    """The viewer closes."""
