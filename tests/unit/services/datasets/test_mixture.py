"""Mixtures: every row once, in an order that the settings decide and nothing else does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rollyard.services.datasets.data_files import DataFiles
from rollyard.services.datasets.mixture import Mixture
from rollyard.services.datasets.settings import MixtureSettings, read_mixture
from rollyard.services.errors import OperatorError
from rollyard.services.server.settings import parse_settings
from tests.unit.services.datasets.files import row, rows, written


def mixture(
    root: Path, *datasets: dict[str, Any], agent: str | None = "player", limit: int | None = None, **more: Any
) -> Mixture:
    settings = parse_settings(MixtureSettings, {"datasets": list(datasets), **more}, "data")
    return Mixture(settings, DataFiles([root]), agent=agent, limit=limit)


def ids(mixed: Mixture) -> list[str]:
    return [name for _, name in mixed.row_refs()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    written(tmp_path / "a.jsonl", rows("a", 30))
    written(tmp_path / "b.jsonl", rows("b", 10))
    return tmp_path


A, B = {"name": "a", "path": "a.jsonl"}, {"name": "b", "path": "b.jsonl"}


@pytest.mark.parametrize("mode", ["weighted", "sequential"])
def test_every_row_appears_exactly_once_whatever_the_weights(root: Path, mode: str) -> None:
    mixed = mixture(root, {**A, "weight": 0.1}, {**B, "weight": 9}, mode=mode)
    assert sorted(ids(mixed)) == sorted([f"a{n}" for n in range(30)] + [f"b{n}" for n in range(10)])
    assert mixed.count == 40


def test_sequential_is_one_data_set_after_the_other(root: Path) -> None:
    found = ids(mixture(root, B, A, mode="sequential"))
    assert [name[0] for name in found] == ["b"] * 10 + ["a"] * 30
    assert found != sorted(found)


def test_weights_set_how_often_a_data_set_is_drawn_while_it_lasts(root: Path) -> None:
    written(root / "long.jsonl", rows("x", 3000))
    written(root / "longer.jsonl", rows("y", 3000))
    first = ids(mixture(root, {"name": "x", "path": "long.jsonl", "weight": 3}, {"name": "y", "path": "longer.jsonl"}))[
        :2000
    ]
    assert 1400 < Counter(name[0] for name in first)["x"] < 1600


def test_the_seed_alone_decides_the_order(root: Path) -> None:
    assert ids(mixture(root, A, B)) == ids(mixture(root, A, B))
    assert ids(mixture(root, A, B)) != ids(mixture(root, A, B, seed=43))
    assert mixture(root, A, B).digest != mixture(root, A, B, seed=43).digest


def test_an_epoch_has_the_same_rows_in_another_order(root: Path) -> None:
    first, second = (ids(mixture(root, {**A, "count": 12}, B, epoch=epoch)) for epoch in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second)


def test_an_order_file_is_kept_in_every_epoch_and_what_it_leaves_out_is_unused(root: Path) -> None:
    (root / "order.txt").write_text("a7\n\na3\nnobody\na7\na9\n")
    ordered = {**A, "order": str(root / "order.txt")}
    for epoch in range(3):
        mixed = mixture(root, ordered, epoch=epoch)
        assert ids(mixed) == ["a7", "a3", "a9"]
    assert mixed.notes == [
        "dataset 'a': 1 ids of its order file are not in the dataset and are ignored (first: nobody)",
        "dataset 'a': 1 lines of its order file repeat an id and are ignored",
    ]


def test_an_order_file_may_come_from_windows(root: Path) -> None:
    (root / "order.txt").write_bytes(b"\xef\xbb\xbfa7\r\na3\r\n")
    assert ids(mixture(root, {**A, "order": str(root / "order.txt")})) == ["a7", "a3"]


def test_an_order_file_without_ids_is_refused(root: Path) -> None:
    (root / "order.txt").write_text("\n\n")
    with pytest.raises(OperatorError, match="contains no ids; expected one id per line"):
        mixture(root, {**A, "order": str(root / "order.txt")})


def test_a_count_beyond_the_data_takes_all_and_says_so(root: Path) -> None:
    mixed = mixture(root, {**B, "count": 500})
    assert len(ids(mixed)) == 10
    assert mixed.notes == ["dataset 'b': count is 500, but there are only 10 rows; all are used"]


def test_an_order_file_without_one_of_its_ids_is_refused(root: Path) -> None:
    (root / "order.txt").write_text("x1\nx2\n")
    with pytest.raises(OperatorError, match=r"none of its 2 ids is in dataset 'a' \(a0, a1, a2"):
        mixture(root, {**A, "order": str(root / "order.txt")})


def test_the_same_data_set_may_stand_in_it_twice(root: Path) -> None:
    mixed = mixture(root, B, {**B, "name": "again", "count": 4})
    counts = Counter(ids(mixed))
    assert sorted(counts.values()) == [1] * 6 + [2] * 4


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"level": "easy"}, ["e1", "e2"]),
        ({"level": ["easy", "hard"]}, ["e1", "e2", "h1"]),
        ({"moves": {"min": 3, "max": 5}}, ["e2", "h1"]),
        ({"moves": {"max": 3}}, ["e1", "e2"]),
        ({"moves": {"min": None, "max": 3}}, ["e1", "e2"]),
        ({"extra.depth": 2}, ["h1"]),
        ({"solved": True}, ["e1"]),
        ({"level": None}, ["n1"]),
        ({"level": "easy", "moves": {"min": 2}}, ["e2"]),
    ],
    ids=str,
)
def test_only_rows_of_which_all_conditions_hold_are_used(tmp_path: Path, where: Any, kept: list[str]) -> None:
    lines = [
        row("1", id="e1", level="easy", moves=1, solved=True),
        row("2", id="e2", level="easy", moves=3, solved=1),
        row("3", id="h1", level="hard", moves=5, extra={"depth": 2}),
        row("4", id="n1", moves="many"),
    ]
    written(tmp_path / "rows.jsonl", lines)
    assert sorted(ids(mixture(tmp_path, {"name": "rows", "path": "rows.jsonl", "where": where}))) == kept


def test_ids_do_not_depend_on_where_a_row_stands(tmp_path: Path) -> None:
    lines = [row("one"), row("two"), row("three")]
    written(tmp_path / "rows.jsonl", lines)
    before = set(ids(mixture(tmp_path, {"name": "rows", "path": "rows.jsonl"})))
    written(tmp_path / "rows.jsonl", lines[::-1])
    assert set(ids(mixture(tmp_path, {"name": "rows", "path": "rows.jsonl"}))) == before


def test_rows_without_an_id_that_say_the_same_are_told_apart(tmp_path: Path) -> None:
    written(tmp_path / "rows.jsonl", [row("one"), row("one")])
    found = sorted(ids(mixture(tmp_path, {"name": "rows", "path": "rows.jsonl"})))
    assert found[1] == f"{found[0]}#2"


def test_an_id_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    written(tmp_path / "rows.jsonl", [row("one", id="x"), row("two", id="x")])
    with pytest.raises(OperatorError, match=r"line 2 has the id 'x' of an earlier row"):
        mixture(tmp_path, {"name": "rows", "path": "rows.jsonl"})


def test_rollouts_carry_their_id_their_dataset_and_its_agent(root: Path) -> None:
    mixed = mixture(root, {**B, "agent_name": "b_agent"}, A, limit=15)
    found = list(mixed.rollouts(2))
    assert [(one.task_index, one.rollout_index) for one in found] == [(n // 2, n % 2) for n in range(30)]
    for one in found:
        assert one.agent == ("b_agent" if one.row["dataset_name"] == "b" else "player")
        assert one.row["prompt_id"][0] == one.row["dataset_name"]
    assert mixed.agents == {"b_agent", "player"}


def test_rows_without_an_agent_are_refused(root: Path) -> None:
    with pytest.raises(OperatorError, match="set its agent_name"):
        mixture(root, A, agent=None)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"datasets": []}, "datasets"),
        ({"datasets": [{"path": "a.jsonl"}]}, "name"),
        ({"datasets": [A], "mode": "wieghted"}, "mode"),
        ({"datasets": [{**A, "weight": 0}]}, "weight"),
        ({"datasets": [{**A, "wieght": 2}]}, "weight"),
        ({"datasets": [{"name": "gsm9k"}]}, "gsm9k/prepare.py"),
        ({"datasets": [{**A, "where": {"level": "none"}}]}, "no row that matches"),
        ({"datasets": [{**A, "where": {"level": {}}}]}, "min, max or both"),
        ({"datasets": [{**A, "where": {"level": {"mni": 3}}}]}, r"is {'mni': 3}: expected .*{min: 3, max: 8}"),
        ({"datasets": [{**A, "where": {"level": [{"min": 3}]}}]}, "a list of values"),
        ({"datasets": [{**A, "where": {"level": {"min": 3, "max": 2}}}]}, "min is greater than max"),
        (
            {"datasets": [{**A, "where": {"m": {"min": 3}}}]},
            r"no row that matches m: {min: 3} \(its first row has .*prompt_id",
        ),
        ({"datasets": [{**A, "path": "."}]}, "is a folder; pass a file in it"),
        ({"datasets": [{**A, "order": "nowhere.txt"}]}, "nowhere.txt cannot be read"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_in_words(root: Path, wrong: Any, words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        mixture(root, *wrong["datasets"], **{key: value for key, value in wrong.items() if key != "datasets"})


def test_a_file_that_changed_under_a_running_collection_is_said(root: Path) -> None:
    mixed = mixture(root, B)
    (root / "b.jsonl").write_text("gone\n")
    with pytest.raises(OperatorError, match="changed while in use"):
        list(mixed.rollouts(1))


def test_rows_that_moved_under_a_running_collection_are_said(root: Path) -> None:
    mixed = mixture(root, B)
    written(root / "b.jsonl", rows("b", 10)[::-1])
    with pytest.raises(OperatorError, match=r"row 'b[0-9]': .*changed while in use"):
        list(mixed.rollouts(1))


def test_marks_that_a_row_holds_empty_are_filled(tmp_path: Path) -> None:
    written(tmp_path / "rows.jsonl", [row("one", prompt_id=None, dataset_name=None, id=7)])
    (made,) = mixture(tmp_path, {"name": "rows", "path": "rows.jsonl"}).rows()
    assert (made["prompt_id"], made["dataset_name"]) == ("7", "rows")


def test_settings_beside_a_file_win_over_the_files_own(root: Path) -> None:
    (root / "mix.yaml").write_text(f"data: {{seed: 7, epoch: 1, datasets: [{{name: a, path: {root / 'a.jsonl'}}}]}}\n")
    read = read_mixture({"file": "mix.yaml", "epoch": 3}, [root])
    assert (read.seed, read.epoch) == (7, 3)
    assert read_mixture("mix.yaml", [root]).epoch == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"- x\n", "is a list"), (b"a: [", "cannot be read: [^\n]*$"), (b"\xff", "cannot be read")],
)
def test_a_file_that_holds_no_settings_is_told_in_one_line(root: Path, content: bytes, words: str) -> None:
    (root / "mix.yaml").write_bytes(content)
    with pytest.raises(OperatorError, match=words):
        read_mixture("mix.yaml", [root])
