"""Clusters of more rollouts than are compared with each other: built from a sample, then all are assigned."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson
import pytest
from sklearn.metrics import adjusted_rand_score

from rollyard.analysis.clusters import assignment
from rollyard.analysis.clusters.find_clusters import FoundClusters, clusters_of
from rollyard.analysis.metrics.profile import Run
from rollyard.records.io.lines import line_at
from tests.support.failing_rows import KINDS, recorded
from tests.support.rollout_files import load_run

SAMPLE = 150


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(tmp_path_factory.mktemp("large"), recorded(list(KINDS), tasks=60, repeats=12))


@pytest.fixture(scope="module")
def sampled(run: Run) -> FoundClusters:
    return clusters_of(run, sample=SAMPLE)


def kinds_of(run: Run, found: FoundClusters) -> dict[str, list[str]]:
    assert run.file is not None
    return {
        key: [orjson.loads(line_at(run.file, offset))["kind"] for offset in offsets.tolist()]
        for key, offsets in found.members.items()
    }


def test_rollouts_outside_the_sample_get_the_cluster_of_their_kind(run: Run, sampled: FoundClusters) -> None:
    assert sampled.record.sampled == SAMPLE
    kinds = kinds_of(run, sampled)
    truth = [kind for own in kinds.values() for kind in own]
    assert len(truth) > 2 * SAMPLE
    assert len(truth) + sampled.record.unclustered == sampled.record.failed
    assert adjusted_rand_score(truth, [key for key, own in kinds.items() for _ in own]) > 0.85
    assert {Counter(own).most_common(1)[0][0] for own in kinds.values()} == set(KINDS)


class PicklingPool:
    """Passes calls as a pool of processes does, but runs them in this process."""

    calls = 0

    def map(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        for call in zip(*arguments, strict=True):
            self.calls += 1
            unpickled, given = pickle.loads(pickle.dumps((function, call)))
            yield unpickled(*given)


def test_several_processes_find_the_same(run: Run, sampled: FoundClusters, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PicklingPool()
    monkeypatch.setattr(assignment, "_CHUNK", 100)
    monkeypatch.setattr(assignment, "reading_pool", lambda workers: contextlib.nullcontext(pool))
    assert clusters_of(run, sample=SAMPLE, workers=2).record == sampled.record
    assert pool.calls > 2


def test_progress_reaches_the_end(run: Run) -> None:
    shares: list[float] = []
    clusters_of(run, sample=SAMPLE, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
