"""Clusters of recordings whose rollouts fail in known ways, with the answers of real models to GSM8K."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import orjson
import pytest
from sklearn.metrics import adjusted_rand_score

from rollyard.analysis.clusters.find_clusters import FoundClusters, clusters_of
from rollyard.records.io.lines import line_at
from rollyard.records.types import Json
from tests.support.failing_rows import KINDS, noise, recorded
from tests.support.rollout_files import load_run


def clustered(folder: Path, rows: Sequence[Json], where: str | None = None) -> FoundClusters:
    return clusters_of(load_run(folder, rows), where=where)


def members_of(found: FoundClusters, folder: Path) -> dict[str, list[Json]]:
    """The rows of each cluster."""
    file = folder / "rollouts.jsonl"
    return {
        key: [orjson.loads(line_at(file, offset)) for offset in offsets.tolist()]
        for key, offsets in found.members.items()
    }


def kinds_in(found: FoundClusters, folder: Path) -> dict[str, list[str]]:
    """The known kinds of the rollouts of each cluster."""
    return {key: [row["kind"] for row in rows] for key, rows in members_of(found, folder).items()}


@dataclass(frozen=True)
class AllKinds:
    """A recording with all kinds of failure, and its clusters."""

    folder: Path
    rows: list[Json]
    found: FoundClusters

    def kind_of(self) -> dict[str, str]:
        """The most common kind of each cluster."""
        return {key: Counter(own).most_common(1)[0][0] for key, own in kinds_in(self.found, self.folder).items()}


@pytest.fixture(scope="module", params=[0, 1], ids="seed {}".format)
def all_kinds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AllKinds:
    folder = tmp_path_factory.mktemp("kinds")
    rows = recorded(list(KINDS), tasks=60, repeats=8, seed=request.param)
    return AllKinds(folder, rows, clustered(folder, rows))


def test_seven_kinds_of_failure_are_told_apart(all_kinds: AllKinds) -> None:
    kinds = kinds_in(all_kinds.found, all_kinds.folder)
    truth = [kind for own in kinds.values() for kind in own]
    label = [key for key, own in kinds.items() for _ in own]
    assert len(truth) >= 0.95 * sum(row["kind"] != "solved" for row in all_kinds.rows)
    assert adjusted_rand_score(truth, label) > 0.9
    purity = sum(Counter(own).most_common(1)[0][1] for own in kinds.values()) / len(truth)
    assert purity > 0.95
    assert set(all_kinds.kind_of().values()) == set(KINDS)


def test_kinds_of_very_different_size_are_told_apart(tmp_path: Path) -> None:
    rows = recorded(["wrong number"] * 12 + ["loop", "give-up"], tasks=60, repeats=8)
    kinds = kinds_in(clustered(tmp_path, rows), tmp_path)
    truth = [kind for own in kinds.values() for kind in own]
    assert adjusted_rand_score(truth, [key for key, own in kinds.items() for _ in own]) > 0.9


@pytest.mark.parametrize(("kind", "solve"), list(zip(KINDS, cycle((0.0, 0.4)), strict=False)))
def test_one_kind_of_failure_is_one_cluster(tmp_path: Path, kind: str, solve: float) -> None:
    found = clustered(tmp_path, recorded([kind], tasks=60, repeats=4, solve=solve)).record
    assert len(found.clusters) == 1
    assert found.clusters[0].count >= 0.95 * found.failed


@pytest.mark.parametrize("seed", [0, 1])
def test_independent_properties_are_no_cluster(tmp_path: Path, seed: int) -> None:
    found = clustered(tmp_path, noise(300, seed)).record
    assert found.clusters == []
    assert found.unclustered == 300
    assert "chance" in found.note


def test_a_cluster_is_found_among_rollouts_without_a_pattern(tmp_path: Path) -> None:
    loops = [row for row in recorded(["loop"], tasks=60, repeats=4) if row["kind"] == "loop"]
    rows = noise(300) + [row | {"_ng_task_index": 1000 + row["_ng_task_index"]} for row in loops]
    found = clustered(tmp_path, rows).record
    assert [one.count for one in found.clusters] == [len(loops)]


def test_a_cluster_is_named_by_what_distinguishes_it(all_kinds: AllKinds) -> None:
    key_of = {kind: key for key, kind in all_kinds.kind_of().items()}
    by_key = {one.key: one.name for one in all_kinds.found.record.clusters}
    for kind, words in {
        "loop": "loop",
        "give-up": "no tool call",
        "truncated": "ended: length",
        "wrong number": "another number",
        "wrong format": "answer has no",
        "wrong arguments": "invalid arguments",
        "environment error": "calculation service",
    }.items():
        assert words in by_key[key_of[kind]]


def test_the_result_does_not_depend_on_the_order_of_the_file(tmp_path: Path) -> None:
    rows = recorded(list(KINDS), tasks=20, repeats=8)
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    first, second = clustered(folders[0], rows).record, clustered(folders[1], rows[::-1]).record
    assert len(first.clusters) > 3
    assert first.model_dump() == second.model_dump()


def test_typical_rollouts_are_of_the_kind_of_their_cluster(all_kinds: AllKinds) -> None:
    kinds = all_kinds.kind_of()
    of_rollout = {(row["_ng_task_index"], row["_ng_rollout_index"]): row["kind"] for row in all_kinds.rows}
    for one in all_kinds.found.record.clusters:
        assert len({example.task for example in one.typical}) == 3
        assert {of_rollout[example.task, example.repeat] for example in one.typical} == {kinds[one.key]}


def test_figures_are_those_of_the_members(all_kinds: AllKinds) -> None:
    members_by_key = members_of(all_kinds.found, all_kinds.folder)
    for one in all_kinds.found.record.clusters:
        members = members_by_key[one.key]
        assert one.count == len(members)
        assert one.tasks == len({row["_ng_task_index"] for row in members})
        assert one.share.mean == pytest.approx(len(members) / len(all_kinds.rows))
        assert one.mean_reward is not None
        assert one.mean_reward.mean == pytest.approx(np.mean([row["reward"] for row in members]))


def test_an_expression_selects_what_counts_as_failed(tmp_path: Path) -> None:
    rows = recorded(list(KINDS), tasks=30, repeats=8)
    found = clustered(tmp_path, rows, where='kind == "loop" or kind == "give-up"').record
    assert found.failed == sum(row["kind"] in ("loop", "give-up") for row in rows)
    assert len(found.clusters) == 2


def test_words_of_the_prompt_do_not_make_clusters(tmp_path: Path) -> None:
    rows = [row for row in recorded(["wrong number"], tasks=5, repeats=60) if row["kind"] == "wrong number"]
    found = clustered(tmp_path, rows).record
    assert len(found.clusters) == 1
