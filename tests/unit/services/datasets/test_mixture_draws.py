"""Draws of a mixture: what happens to one data set does not move the rows of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.services.datasets.data_files import DataFiles
from rollyard.services.datasets.mixture import Mixture
from rollyard.services.datasets.settings import MixtureSettings
from rollyard.services.errors import OperatorError
from rollyard.services.rollouts.manifest import encode_manifest, new_manifest, resumed_manifest
from rollyard.services.server.settings import parse_settings
from tests.unit.services.datasets.files import row, written

B = {"name": "b", "path": "b.jsonl"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, count in (("a", 40), ("b", 50), ("c", 7)):
        lines = [row(f"{name}{number}", id=f"{name}{number}", number=number) for number in range(count)]
        written(tmp_path / f"{name}.jsonl", lines)
    return tmp_path


def mixture(root: Path, *datasets: dict[str, Any], **more: Any) -> Mixture:
    settings = parse_settings(MixtureSettings, {"datasets": list(datasets), **more}, "data")
    return Mixture(settings, DataFiles([root]), agent="player")


def drawn(mixed: Mixture, name: str) -> list[str]:
    return [one for dataset, one in mixed.row_refs() if dataset.name == name]


@pytest.mark.parametrize("epoch", [0, 1, 5])
@pytest.mark.parametrize("count", [None, 12])
@pytest.mark.parametrize("mode", ["weighted", "sequential"])
def test_no_change_of_one_data_set_changes_which_rows_of_another_are_drawn_when(
    root: Path, epoch: int, count: int | None, mode: str
) -> None:
    b = {**B, "count": count}
    plain = {"name": "a", "path": "a.jsonl"}
    neighbours: list[list[dict[str, Any]]] = [
        [],
        [plain],
        [{**plain, "where": {"number": {"max": 11}}}],
        [{**plain, "count": 3}],
        [{**plain, "shuffle": False}],
        [{**plain, "weight": 9.0}],
        [{**plain, "path": "c.jsonl"}],
        [{**plain, "name": "other"}, {"name": "c", "path": "c.jsonl"}],
    ]
    orders = {
        tuple(drawn(mixture(root, *sets, epoch=epoch, mode=mode), "b"))
        for before in neighbours
        for sets in ([*before, b], [b, *before])
    }
    assert len(orders) == 1
    assert len(next(iter(orders))) == (count or 50)


def test_data_sets_of_one_name_draw_by_themselves(root: Path) -> None:
    twice = mixture(root, {**B, "count": 10}, {**B, "count": 10}, mode="sequential")
    names = drawn(twice, "b")
    assert names[:10] != names[10:]
    assert names[:10] == drawn(mixture(root, {**B, "count": 10}), "b")


def test_a_collection_that_was_drawn_by_the_rule_before_is_refused_by_name(root: Path, tmp_path: Path) -> None:
    output, manifest = tmp_path / "r.jsonl", tmp_path / "r_manifest.json"
    identity = mixture(root, B).identity
    before = {key: value for key, value in identity.items() if key != "draws"} | {"input_sha256": "older"}
    manifest.write_bytes(encode_manifest(new_manifest(output, before, {}, {})))
    with pytest.raises(OperatorError, match="draws: not set in the file, 'one generator per data set' now"):
        resumed_manifest(manifest, output, identity, {}, accept_changed_code=False)


def test_a_mixture_without_shuffled_data_sets_goes_on_with_its_old_collection(root: Path) -> None:
    """Its digest is of its rows in their order, which no rule of draws decided."""
    assert set(mixture(root, {**B, "shuffle": False}).identity) == {"input_sha256", "rows"}
