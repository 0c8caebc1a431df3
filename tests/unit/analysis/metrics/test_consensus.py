from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rollyard.analysis.metrics.per_task import votes
from rollyard.analysis.metrics.profile import Run
from rollyard.records.types import Json
from tests.support.rollout_files import load_run, solved


def cons_at(k: int, answers: Sequence[int], right: Sequence[bool]) -> float:
    """cons@k by enumerating all subsets."""
    subsets = list(itertools.combinations(range(len(answers)), k))
    return sum(is_right(subset, answers, right) for subset in subsets) / len(subsets)


def is_right(subset: Sequence[int], answers: Sequence[int], right: Sequence[bool]) -> bool:
    winner = Counter(answers[index] for index in subset).most_common(1)[0][0]
    return right[answers.index(winner)]


def shares(answers: Sequence[Sequence[int]], right: Sequence[Sequence[bool]]) -> list[list[float]]:
    measured = np.array([len(one) for one in answers])
    starts = np.concatenate([[0], np.cumsum(measured)[:-1]])
    found = votes(np.concatenate(answers), np.concatenate(right).astype(bool), starts, measured)
    assert found is not None
    by_task = {task: one.shares[index] for one in found for index, task in enumerate(one.tasks.tolist())}
    return [by_task[task].tolist() for task in range(len(answers))]


def test_cons_at_k_equals_the_enumeration_of_all_subsets() -> None:
    rng = random.Random(0)
    answers = [[rng.randint(2, rng.choice([2, 3, 7])) for _ in range(rng.randint(1, 9))] for _ in range(60)]
    right = [[rng.random() < 0.5 for _ in own] for own in answers]
    for own, flags, found in zip(answers, right, shares(answers, right), strict=True):
        assert found == pytest.approx([cons_at(k, own, flags) for k in range(1, len(own) + 1)], abs=1e-11)


def test_the_answer_that_occurs_first_wins_a_tie() -> None:
    assert shares([[2, 3], [3, 2]], [[True, False], [False, True]]) == [[0.5, 1.0], [0.5, 0.0]]


def test_tasks_with_more_rollouts_than_a_double_can_count_have_no_cons_at_k() -> None:
    assert votes(np.full(1001, 2), np.ones(1001, bool), np.array([0]), np.array([1001])) is None


def rows(answers: Sequence[object], gold: object, **more: object) -> list[Json]:
    return [solved(0, repeat, one == gold, extracted_answer=one, **more) for repeat, one in enumerate(answers)]


def consensus(run: Run) -> list[float | None]:
    assert run.profile.tasks is not None
    return [None if at.consensus is None else at.consensus.mean for at in run.profile.tasks.pass_at]


@pytest.mark.parametrize(
    ("answers", "gold", "expected"),
    [
        (["7", "8", "7", None], "7", [0.5, 4 / 6, 0.75, 1.0]),
        ([None, None, "7"], "7", [1 / 3, 0.0, 0.0]),  # those without an answer vote for a common wrong one
        ([0, 0, None], 0, [2 / 3, 1.0, 1.0]),
    ],
)
def test_the_profile_of_rows_with_extracted_answers_has_cons_at_k(
    tmp_path: Path, answers: list[object], gold: object, expected: list[float]
) -> None:
    assert consensus(load_run(tmp_path, rows(answers, gold))) == pytest.approx(expected)


def test_a_mixture_has_cons_at_k_only_for_its_datasets_with_answers(tmp_path: Path) -> None:
    played = [solved(1, repeat, True, dataset_name="sokoban") for repeat in range(2)]
    run = load_run(tmp_path, [*rows(["7", "7"], "7", dataset_name="gsm8k"), *played])
    assert consensus(run) == [None, None]
    by_name = {one.name: one.pass_at[-1].consensus for one in run.profile.by_dataset}
    assert by_name["gsm8k"] is not None and by_name["gsm8k"].mean == 1.0
    assert by_name["sokoban"] is None
