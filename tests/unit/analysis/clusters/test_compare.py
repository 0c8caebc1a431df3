"""Clusters of two runs: which kinds of failure went away, and which are new."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollyard
from rollyard.analysis.clusters.cluster_records import ClusterComparison
from rollyard.records.types import Json
from tests.support.failing_rows import recorded
from tests.support.rollout_files import write

TASKS, REPEATS = 40, 8


def compared(folder: Path, first: list[Json], second: list[Json]) -> ClusterComparison:
    paths = [write(folder / f"{name}.jsonl", rows) for name, rows in (("first", first), ("second", second))]
    return rollyard.compare_failures(*paths)


@pytest.fixture(scope="module")
def change(tmp_path_factory: pytest.TempPathFactory) -> ClusterComparison:
    """Loops went away, truncated answers are new, and other kinds occur in both runs."""
    first = recorded(["loop", "give-up", "wrong format"], tasks=TASKS, repeats=REPEATS)
    second = recorded(["truncated", "give-up", "wrong format"], tasks=TASKS, repeats=REPEATS, seed=1)
    return compared(tmp_path_factory.mktemp("change"), first, second)


def test_a_kind_that_only_the_first_run_has_is_gone(change: ClusterComparison) -> None:
    (gone,) = [one for one in change.changes if one.state == "gone"]
    assert "loop" in gone.cluster.name
    assert gone.counts[0] > 30
    assert gone.counts[1] == 0
    assert gone.examples[0]
    assert not gone.examples[1]


def test_a_kind_that_only_the_second_run_has_is_new(change: ClusterComparison) -> None:
    (new,) = [one for one in change.changes if one.state == "new"]
    assert "ended: length" in new.cluster.name
    assert new.counts[0] == 0


def test_kinds_that_are_as_frequent_as_before_are_the_same(change: ClusterComparison) -> None:
    same = [one for one in change.changes if one.state == "same"]
    assert len(same) == len(change.changes) - 2 == 2
    for one in same:
        low, high = one.difference.low, one.difference.high
        assert low is not None and high is not None and low <= 0 <= high


def test_the_largest_change_comes_first(change: ClusterComparison) -> None:
    sizes = [abs(one.difference.mean) for one in change.changes]
    assert sizes == sorted(sizes, reverse=True)


def test_the_counts_of_all_clusters_are_those_of_the_failed_rollouts(change: ClusterComparison) -> None:
    for run in (0, 1):
        assert sum(one.counts[run] for one in change.changes) + change.unclustered[run] == change.failed[run]


def test_tasks_are_paired_by_their_content(change: ClusterComparison) -> None:
    assert change.paired_by == "prompt"
    assert change.tasks == TASKS
    for one in change.changes:
        # Every task has as many repeats, so that the mean of the tasks' differences is that of the shares.
        assert one.difference.mean == pytest.approx(one.shares[1].mean - one.shares[0].mean)


def test_a_run_against_itself_has_no_change(tmp_path: Path) -> None:
    rows = recorded(["loop", "give-up"], tasks=30, repeats=4)
    found = compared(tmp_path, rows, rows)
    assert {one.state for one in found.changes} == {"same"}
    assert {one.difference.mean for one in found.changes} == {0.0}


def test_runs_of_other_tasks_count_as_independent(tmp_path: Path) -> None:
    first = recorded(["loop", "give-up"], tasks=30, repeats=4)
    second = [
        row | {"responses_create_params": {"input": "the same for all tasks"}}
        for row in recorded(["give-up"], tasks=30, repeats=4, seed=1)
    ]
    found = compared(tmp_path, first, second)
    assert found.paired_by == ""
    gone = next(one for one in found.changes if one.state == "gone")
    assert gone.difference.low is not None
    assert gone.difference.low < gone.difference.mean < 0
