"""Curricula: tasks ordered by pass@k, which these tests compute by enumeration."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from rollyard.analysis.metrics.curriculum import hardest_first, ids_of, order_by_id, pass_at
from rollyard.records.errors import OperatorError
from tests.support.rollout_files import load_run, row, write


@pytest.mark.parametrize("k", range(1, 7))
def test_pass_at_k_is_the_share_of_k_subsets_with_a_solved_rollout(k: int) -> None:
    for solved in range(7):
        subsets = list(combinations([1] * solved + [0] * (6 - solved), k))
        expected = sum(any(subset) for subset in subsets) / len(subsets)
        assert pass_at(k, np.array([6]), np.array([solved]))[0] == pytest.approx(expected, abs=1e-12)


def test_the_hardest_tasks_with_enough_rollouts_come_first_and_solve_rates_break_ties(tmp_path: Path) -> None:
    outcomes = [[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0]]
    run = load_run(tmp_path, [row(task, at, won) for task, own in enumerate(outcomes) for at, won in enumerate(own)])
    assert hardest_first(run, 4) == [1, 4, 2, 3, 0]
    assert hardest_first(run, 1) == [1, 4, 5, 2, 3, 0]
    with pytest.raises(OperatorError, match=r"\b4 rollouts .*pass@16"):
        hardest_first(run, 16)


def with_ids(path: Path, *ids: str | None) -> Path:
    rows = [{"_ng_task_index": task, **({} if name is None else {"id": name})} for task, name in enumerate(ids)]
    return write(path, rows, tail=b'{"torn')


def test_tasks_are_identified_by_id_or_else_by_position(tmp_path: Path) -> None:
    path = with_ids(tmp_path / "r.jsonl", "b", "a", None)
    assert order_by_id([2, 0, 1], ids_of(path), ["a", "b", "c"], path) == ["c", "b", "a"]


@pytest.mark.parametrize("ids", [["x", "y"], ["a", "b"]])
def test_rollouts_of_a_different_dataset_are_rejected(tmp_path: Path, ids: list[str]) -> None:
    path = with_ids(tmp_path / "r.jsonl", "a", "b", None)
    with pytest.raises(OperatorError, match="different dataset"):
        order_by_id([0, 1, 2], ids_of(path), ids, path)
