"""Mixtures: every row exactly once, in an order that only the settings decide."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.services.datasets.dataset import read_mixture
from rollyard.services.datasets.mixture import Mixture
from tests.unit.services.datasets.files import mixture, row, rows, write_rows


def ids(mix: Mixture) -> list[str]:
    return [name for _, name in mix.row_refs()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_rows(tmp_path / "a.jsonl", rows("a", 30))
    write_rows(tmp_path / "b.jsonl", rows("b", 10))
    return tmp_path


A, B = {"name": "a", "path": "a.jsonl"}, {"name": "b", "path": "b.jsonl"}


@pytest.mark.parametrize("mode", ["weighted", "sequential"])
def test_every_row_appears_exactly_once_for_any_weights(root: Path, mode: str) -> None:
    mix = mixture(root, {**A, "weight": 0.1}, {**B, "weight": 9}, mode=mode)
    assert sorted(ids(mix)) == sorted([f"a{n}" for n in range(30)] + [f"b{n}" for n in range(10)])
    assert mix.count == 40


def test_sequential_mode_plays_one_dataset_after_the_other(root: Path) -> None:
    found = ids(mixture(root, B, A, mode="sequential"))
    assert [name[0] for name in found] == ["b"] * 10 + ["a"] * 30
    assert found != sorted(found)


def test_weights_set_how_often_a_dataset_is_drawn(root: Path) -> None:
    write_rows(root / "long.jsonl", rows("x", 3000))
    write_rows(root / "longer.jsonl", rows("y", 3000))
    first = ids(mixture(root, {"name": "x", "path": "long.jsonl", "weight": 3}, {"name": "y", "path": "longer.jsonl"}))[
        :2000
    ]
    assert 1400 < Counter(name[0] for name in first)["x"] < 1600


def test_the_seed_alone_decides_the_order(root: Path) -> None:
    assert ids(mixture(root, A, B)) == ids(mixture(root, A, B))
    assert ids(mixture(root, A, B)) != ids(mixture(root, A, B, seed=43))
    assert mixture(root, A, B).digest != mixture(root, A, B, seed=43).digest


def test_every_epoch_has_the_same_rows_in_a_different_order(root: Path) -> None:
    first, second = (ids(mixture(root, {**A, "count": 12}, B, epoch=epoch)) for epoch in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second)


def test_every_epoch_follows_the_order_file_and_skips_rows_it_does_not_list(root: Path) -> None:
    (root / "order.txt").write_text("a7\n\na3\na7\na9\n")
    ordered = {**A, "order": str(root / "order.txt")}
    for epoch in range(3):
        mix = mixture(root, ordered, epoch=epoch)
        assert ids(mix) == ["a7", "a3", "a9"]
    (repeated,) = mix.notes
    assert repeated.startswith("dataset 'a': 1 lines ")


def test_an_order_file_may_list_rows_that_the_filter_excludes(root: Path) -> None:
    write_rows(root / "levels.jsonl", [row(name, prompt_id=name, level=level) for name, level in (("e", 1), ("h", 5))])
    (root / "order.txt").write_text("h\ne\n")
    levels = {"name": "l", "path": "levels.jsonl", "order": str(root / "order.txt"), "where": {"level": 5}}
    assert ids(mixture(root, levels)) == ["h"]


def test_a_count_larger_than_the_dataset_takes_all_rows_and_adds_a_note(root: Path) -> None:
    mix = mixture(root, {**B, "count": 500})
    assert len(ids(mix)) == 10
    (note,) = mix.notes
    assert note.startswith("dataset 'b': count is 500") and "10 rows" in note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n", r"order\.txt: .*no ids"),
        ("a7\nx1\n", r"order\.txt: 'x1' is not in dataset 'a' \(a0, a1, a2"),
        ("x1\na7\nx2\n", r"'x1' and 1 more of its 3 ids are not in dataset 'a'"),
    ],
)
def test_an_order_file_without_ids_or_with_an_unknown_one_is_rejected(text: str, message: str, root: Path) -> None:
    (root / "order.txt").write_text(text)
    with pytest.raises(OperatorError, match=message):
        mixture(root, {**A, "order": str(root / "order.txt")})


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
def test_only_rows_that_meet_all_conditions_are_used(tmp_path: Path, where: Any, kept: list[str]) -> None:
    lines = [
        row("1", id="e1", level="easy", moves=1, solved=True),
        row("2", id="e2", level="easy", moves=3, solved=1),
        row("3", id="h1", level="hard", moves=5, extra={"depth": 2}),
        row("4", id="n1", moves="many"),
    ]
    write_rows(tmp_path / "rows.jsonl", lines)
    assert sorted(ids(mixture(tmp_path, {"name": "rows", "path": "rows.jsonl", "where": where}))) == kept


def test_ids_do_not_depend_on_the_position_of_a_row(tmp_path: Path) -> None:
    lines = [row("one"), row("two"), row("three")]
    write_rows(tmp_path / "rows.jsonl", lines)
    before = set(ids(mixture(tmp_path, {"name": "rows", "path": "rows.jsonl"})))
    write_rows(tmp_path / "rows.jsonl", lines[::-1])
    assert set(ids(mixture(tmp_path, {"name": "rows", "path": "rows.jsonl"}))) == before


def test_equal_rows_without_an_id_get_different_ids(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [row("one"), row("one")])
    found = sorted(ids(mixture(tmp_path, {"name": "rows", "path": "rows.jsonl"})))
    assert found[1] == f"{found[0]}#2"


def test_a_repeated_id_is_rejected_with_its_line(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [row("one", id="x"), row("two", id="x")])
    with pytest.raises(OperatorError, match=r"line 2 .*\('x'\)"):
        mixture(tmp_path, {"name": "rows", "path": "rows.jsonl"})


def test_rollouts_carry_their_id_dataset_and_agent(root: Path) -> None:
    mix = mixture(root, {**B, "agent_name": "b_agent"}, A, limit=15)
    found = list(mix.rollouts(2))
    assert [(rollout.task_index, rollout.rollout_index) for rollout in found] == [(n // 2, n % 2) for n in range(30)]
    for rollout in found:
        assert rollout.agent == ("b_agent" if rollout.row["dataset_name"] == "b" else "agent")
        assert rollout.row["prompt_id"][0] == rollout.row["dataset_name"]
    assert mix.agents == {"b_agent", "agent"}


def test_rows_without_an_agent_are_rejected(root: Path) -> None:
    with pytest.raises(OperatorError, match="set its agent_name"):
        mixture(root, A, agent=None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"datasets": []}, "datasets"),
        ({"datasets": [{"path": "a.jsonl"}]}, "name"),
        ({"datasets": [A], "mode": "wieghted"}, "mode"),
        ({"datasets": [{**A, "weight": 0}]}, "weight"),
        ({"datasets": [{**A, "wieght": 2}]}, "weight"),
        ({"datasets": [{"name": "gsm9k"}]}, "gsm9k/prepare.py"),
        ({"datasets": [{**A, "where": {"level": "none"}}]}, "no row .* level: none"),
        ({"datasets": [{**A, "where": {"level": {}}}]}, "min, max or"),
        ({"datasets": [{**A, "where": {"level": {"mni": 3}}}]}, r"{'mni': 3}.*{min: 3, max: 8}"),
        ({"datasets": [{**A, "where": {"level": [{"min": 3}]}}]}, "list of values"),
        ({"datasets": [{**A, "where": {"level": {"min": 3, "max": 2}}}]}, "min .*max"),
        ({"datasets": [{**A, "where": {"m": {"min": 3}}}]}, r" m: {min: 3} \(.*prompt_id"),
        ({"datasets": [{**A, "path": "."}]}, "is a folder"),
        ({"datasets": [{**A, "order": "nowhere.txt"}]}, r"nowhere\.txt "),
    ],
    ids=str,
)
def test_invalid_settings_are_rejected_with_the_reason(root: Path, wrong: Any, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        mixture(root, *wrong["datasets"], **{key: value for key, value in wrong.items() if key != "datasets"})


def test_rows_that_move_during_a_collection_are_an_error(root: Path) -> None:
    mix = mixture(root, B)
    write_rows(root / "b.jsonl", rows("b", 10)[::-1])
    with pytest.raises(OperatorError, match=r"'b[0-9]'.*changed"):
        list(mix.rollouts(1))


def test_null_prompt_id_and_dataset_name_are_filled_in(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [row("one", prompt_id=None, dataset_name=None, id=7)])
    (filled,) = mixture(tmp_path, {"name": "rows", "path": "rows.jsonl"}).rows()
    assert (filled["prompt_id"], filled["dataset_name"]) == ("7", "rows")


def test_settings_next_to_a_file_override_the_files_settings(root: Path) -> None:
    (root / "mix.yaml").write_text(f"data: {{seed: 7, epoch: 1, datasets: [{{name: a, path: {root / 'a.jsonl'}}}]}}\n")
    read = read_mixture({"file": "mix.yaml", "epoch": 3}, [root])
    assert (read.seed, read.epoch) == (7, 3)
    assert read_mixture("mix.yaml", [root]).epoch == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"- x\n", "is a list"), (b"a: [", "cannot be read: [^\n]*$"), (b"\xff", "cannot be read")],
)
def test_a_mixture_file_without_settings_is_rejected_in_one_line(root: Path, content: bytes, message: str) -> None:
    (root / "mix.yaml").write_bytes(content)
    with pytest.raises(OperatorError, match=message):
        read_mixture("mix.yaml", [root])


@pytest.fixture
def three(tmp_path: Path) -> Path:
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
    three: Path, epoch: int, count: int | None, mode: str
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
        tuple(drawn(mixture(three, *sets, epoch=epoch, mode=mode), "b"))
        for others in neighbours
        for sets in ([*others, b], [b, *others])
    }
    assert len(orders) == 1
    assert len(next(iter(orders))) == (count or 50)


def test_datasets_with_the_same_name_draw_independently(three: Path) -> None:
    repeated = mixture(three, {**B, "count": 10}, {**B, "count": 10}, mode="sequential")
    names = drawn(repeated, "b")
    assert names[:10] != names[10:]
    assert names[:10] == drawn(mixture(three, {**B, "count": 10}), "b")


def test_a_mixture_without_shuffled_datasets_does_not_name_the_rule_of_draws(three: Path) -> None:
    assert set(mixture(three, {**B, "shuffle": False}).identity) == {"input_sha256", "rows"}
    assert set(mixture(three, B).identity) == {"input_sha256", "rows", "draws"}
