"""Curricula: tasks ordered by pass@k, which these tests compute by enumeration."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import orjson
import pytest

from rollyard.analysis.metrics.curriculum import hardest_first, ids_of, order_by_id, pass_at
from rollyard.analysis.metrics.load import load
from rollyard.records.errors import OperatorError


def rollouts(path: Path, *tasks: list[int]) -> Path:
    lines = [
        {"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": float(solved), "response": {"output": []}}
        for task, outcomes in enumerate(tasks)
        for repeat, solved in enumerate(outcomes)
    ]
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


@pytest.mark.parametrize("k", range(1, 7))
def test_pass_at_k_is_the_share_of_k_subsets_with_a_solved_rollout(k: int) -> None:
    for solved in range(7):
        outcomes = [1] * solved + [0] * (6 - solved)
        subsets = list(combinations(outcomes, k))
        expected = sum(any(subset) for subset in subsets) / len(subsets)
        assert pass_at(k, np.array([6]), np.array([solved]))[0] == pytest.approx(expected, abs=1e-12)


def test_the_hardest_tasks_come_first_and_solve_rates_break_ties(tmp_path: Path) -> None:
    run = load(rollouts(tmp_path / "r.jsonl", [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]))
    assert hardest_first(run, 4) == [1, 4, 2, 3, 0]
    assert hardest_first(run, 1) == [1, 4, 2, 3, 0]


def test_tasks_with_too_few_rollouts_are_excluded_and_an_empty_result_is_an_error(tmp_path: Path) -> None:
    run = load(rollouts(tmp_path / "r.jsonl", [1, 1], [0, 1, 0]))
    assert hardest_first(run, 3) == [1]
    with pytest.raises(OperatorError, match=r"\b3 rollouts .*pass@16"):
        hardest_first(run, 16)


def write_rollouts_with_ids(path: Path, *ids: str | None) -> Path:
    lines = [{"_ng_task_index": task, **({} if name is None else {"id": name})} for task, name in enumerate(ids)]
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines) + b'{"torn')
    return path


def test_tasks_are_identified_by_id_or_else_by_position(tmp_path: Path) -> None:
    path = write_rollouts_with_ids(tmp_path / "r.jsonl", "b", "a", None)
    assert order_by_id([2, 0, 1], ids_of(path), ["a", "b", "c"], path) == ["c", "b", "a"]


@pytest.mark.parametrize("ids", [["x", "y"], ["a", "b"]])
def test_rollouts_of_a_different_dataset_are_rejected(tmp_path: Path, ids: list[str]) -> None:
    path = write_rollouts_with_ids(tmp_path / "r.jsonl", "a", "b", None)
    with pytest.raises(OperatorError, match="different dataset"):
        order_by_id([0, 1, 2], ids_of(path), ids, path)
