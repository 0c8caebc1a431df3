"""Draws of a mixture: a change to one dataset does not change the draws of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.manifest import encode_manifest, new_manifest, resumed_manifest
from rollyard.services.datasets.mixture import Mixture
from tests.unit.services.datasets.files import mixture, row, write_rows

B = {"name": "b", "path": "b.jsonl"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, count in (("a", 40), ("b", 50), ("c", 7)):
        lines = [row(f"{name}{number}", id=f"{name}{number}", number=number) for number in range(count)]
        write_rows(tmp_path / f"{name}.jsonl", lines)
    return tmp_path


def drawn(mix: Mixture, name: str) -> list[str]:
    return [row_id for dataset, row_id in mix.row_refs() if dataset.name == name]


@pytest.mark.parametrize(
    ("epoch", "count", "mode"),
    [(0, None, "weighted"), (0, 12, "sequential"), (5, None, "sequential"), (5, 12, "weighted")],
)
def test_changing_one_dataset_does_not_change_the_draws_of_another(
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
        for others in neighbours
        for sets in ([*others, b], [b, *others])
    }
    assert len(orders) == 1
    assert len(next(iter(orders))) == (count or 50)


def test_datasets_with_the_same_name_draw_independently(root: Path) -> None:
    repeated = mixture(root, {**B, "count": 10}, {**B, "count": 10}, mode="sequential")
    names = drawn(repeated, "b")
    assert names[:10] != names[10:]
    assert names[:10] == drawn(mixture(root, {**B, "count": 10}), "b")


def test_a_collection_drawn_by_an_older_rule_is_rejected(root: Path, tmp_path: Path) -> None:
    output, manifest = tmp_path / "r.jsonl", tmp_path / "r_manifest.json"
    identity = mixture(root, B).identity
    before = {key: value for key, value in identity.items() if key != "draws"} | {"input_sha256": "older"}
    manifest.write_bytes(encode_manifest(new_manifest(output, before, {}, {})))
    with pytest.raises(OperatorError, match=r"draws: .*'one generator per data set'"):
        resumed_manifest(manifest, output, identity, {}, accept_changed_code=False)


def test_a_mixture_without_shuffled_datasets_resumes_its_old_collection(root: Path) -> None:
    """Its identity does not name the draw rule because that rule did not affect the order."""
    assert set(mixture(root, {**B, "shuffle": False}).identity) == {"input_sha256", "rows"}
