"""Cohen's kappa against statsmodels, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.inter_rater import cohens_kappa

from rollyard.analysis.metrics.agreement import agreement


@pytest.mark.parametrize("categories", [2, 3])
def test_kappa_and_its_error_are_those_of_statsmodels_if_each_task_has_one_rollout(categories: int) -> None:
    rng = np.random.default_rng(categories)
    one = rng.integers(0, categories, 200)
    two = np.where(rng.random(200) < 0.6, one, rng.integers(0, categories, 200))
    found = agreement(one, two, np.arange(200), categories)
    expected = cohens_kappa(np.array(found.counts), return_results=True)
    assert found.kappa is not None and found.kappa.stderr is not None
    assert found.kappa.mean == pytest.approx(expected.kappa, rel=1e-12)
    assert found.kappa.stderr == pytest.approx(expected.std_kappa * np.sqrt(200 / 199), rel=1e-12)


def test_equal_repeats_of_a_task_count_as_one() -> None:
    one, two, tasks = np.array([0, 0, 1, 1, 0, 1]), np.array([0, 1, 1, 1, 0, 0]), np.arange(6)
    single = agreement(one, two, tasks)
    repeated = agreement(np.repeat(one, 5), np.repeat(two, 5), np.repeat(tasks, 5))
    assert (repeated.n, repeated.tasks) == (30, 6)
    assert single.kappa is not None and repeated.kappa is not None
    assert repeated.kappa.stderr == pytest.approx(single.kappa.stderr, rel=1e-12)


def test_the_order_of_the_rollouts_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    one, two, tasks = rng.integers(0, 2, 60), rng.integers(0, 2, 60), rng.integers(0, 9, 60)
    order = rng.permutation(60)
    first, second = agreement(one, two, tasks), agreement(one[order], two[order], tasks[order])
    assert first.counts == second.counts
    assert first.kappa is not None and second.kappa is not None
    assert first.kappa.stderr == pytest.approx(second.kappa.stderr)


def test_perfect_agreement_has_no_interval_of_kappa_but_a_bound_on_the_share() -> None:
    found = agreement([0, 1, 0, 1], [0, 1, 0, 1], np.arange(4))
    assert found.kappa is not None
    assert (found.kappa.mean, found.kappa.low) == (1.0, None)
    assert found.agreed.low is not None and 0 < found.agreed.low < 1


def test_kappa_is_undefined_if_chance_explains_everything() -> None:
    found = agreement([0, 0], [0, 0], np.arange(2))
    assert found.kappa is None and found.agreed.mean == 1


def test_an_interval_covers_the_true_kappa_in_about_95_of_100_samples() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        one = rng.integers(0, 2, 150)
        two = np.where(rng.random(150) < 0.8, one, 1 - one)  # kappa 0.6
        kappa = agreement(one, two, np.arange(150)).kappa
        assert kappa is not None and kappa.low is not None and kappa.high is not None
        covered += kappa.low <= 0.6 <= kappa.high
    assert 0.91 <= covered / 300 <= 0.99


@pytest.mark.parametrize("tasks", [[0, 0, 1], [0, 1, 2], list(range(30))])
def test_kappa_of_a_rater_who_uses_one_category_has_no_interval(tasks: list[int]) -> None:
    found = agreement([1] * len(tasks), [task % 2 for task in range(len(tasks))], np.array(tasks))
    assert found.kappa is not None and abs(found.kappa.mean) < 1e-12
    assert found.kappa.stderr is None and found.kappa.low is None
