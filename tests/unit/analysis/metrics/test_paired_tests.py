"""The statistics of paired comparisons against statsmodels and scipy."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import optimize, stats
from statsmodels.stats import multitest
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.power import TTestPower

from rollyard.analysis.metrics import comparison

TABLES = [(0, 0, 10), (1, 0, 1), (9, 2, 40), (3, 14, 50), (6, 6, 20), (120, 85, 1319), (4000, 4100, 100_000)]


@pytest.mark.parametrize(("gained", "lost", "tasks"), TABLES)
def test_mcnemars_p_value_is_that_of_statsmodels_and_the_mid_p_value_counts_the_observed_table_half(
    gained: int, lost: int, tasks: int
) -> None:
    changed, fewer = gained + lost, min(gained, lost)
    exact = statsmodels_mcnemar([[tasks - changed, lost], [gained, 0]], exact=True).pvalue if changed else 1
    binomial = stats.binom(changed, 0.5)
    mid = 1.0 if gained == lost else 2 * (binomial.cdf(fewer) - binomial.pmf(fewer) / 2)
    assert comparison.p_values(gained, lost) == pytest.approx((exact, mid), rel=1e-9)


@pytest.mark.parametrize("alpha", [0.05, 0.2])
@pytest.mark.parametrize(("gained", "lost", "tasks"), [table for table in TABLES if table[2] > 1])
def test_tangos_interval_is_the_inversion_of_the_score_test(gained: int, lost: int, tasks: int, alpha: float) -> None:
    def chi_squared(difference: float) -> float:
        """The score statistic with the restricted maximum likelihood estimate found numerically."""

        def log_likelihood(share_lost: float) -> float:
            shares = (share_lost + difference, share_lost, 1 - 2 * share_lost - difference)
            counts = (gained, lost, tasks - gained - lost)
            return -sum(n * math.log(max(p, 1e-300)) for n, p in zip(counts, shares, strict=True) if n)

        least, most = max(0.0, -difference), (1 - difference) / 2
        found = optimize.minimize_scalar(
            log_likelihood, bounds=(least, most), method="bounded", options={"xatol": 1e-12}
        )
        variance = tasks * (2 * found.x + difference - difference**2)
        return float((gained - lost - tasks * difference) ** 2 / variance)

    low, high = comparison.tango_interval(gained, lost, tasks, alpha)
    assert low < (gained - lost) / tasks < high
    for bound in (low, high):
        assert chi_squared(bound) == pytest.approx(stats.chi2.ppf(1 - alpha, 1), rel=1e-4)


def test_tangos_interval_stays_within_its_bounds_if_every_task_changed() -> None:
    low, high = comparison.tango_interval(10, 0, 10, 0.05)
    assert 0.4 < low < high == 1.0 and comparison.tango_interval(0, 10, 10, 0.05) == pytest.approx((-1.0, -low))


def skewed(tasks: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rng = random.Random(seed)
    return np.array([rng.choice([0, 0, 0, 0, 0, 0, -0.25, 0.5, 1.0]) for _ in range(tasks)])


@pytest.mark.parametrize("continuous", [False, True])
def test_the_bootstrap_interval_is_scipys_bca_interval(continuous: bool) -> None:
    differences = skewed(200, 1) + (np.random.default_rng(2).normal(0, 0.3, 200) if continuous else 0)
    found = comparison.bootstrap(differences, 0.05, seed=0, resamples=10_000)
    expected = stats.bootstrap(
        (differences,), np.mean, n_resamples=10_000, method="BCa", rng=np.random.default_rng(5)
    ).confidence_interval
    width = expected.high - expected.low
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.03 * width)


def test_the_bootstrap_is_repeatable_whatever_the_order_of_tasks_and_close_to_the_t_test_on_many() -> None:
    differences = skewed(100, 3)
    assert comparison.bootstrap(differences, 0.05, seed=0) == comparison.bootstrap(differences[::-1], 0.05, seed=0)
    assert comparison.bootstrap(differences, 0.05, seed=0) != comparison.bootstrap(differences, 0.05, seed=1)
    many = np.random.default_rng(4).normal(0.06, 0.5, 400)
    assert comparison.bootstrap(many, 0.05, seed=0).p == pytest.approx(stats.ttest_1samp(many, 0).pvalue, abs=0.01)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 50, 199, 2000, 2001, 100_000])
def test_students_t_is_that_of_scipy(freedom: int) -> None:
    for t in (0.0, 0.7, 2.1, 6.0):
        assert comparison.two_sided_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-5, abs=1e-14)
    for alpha in (0.2, 0.05, 0.001):
        assert comparison.quantile(alpha, freedom) == pytest.approx(stats.t.ppf(1 - alpha / 2, freedom), rel=1e-6)


def test_the_minimum_detectable_effect_and_the_number_of_tasks_are_those_of_statsmodels() -> None:
    for tasks in (20, 200, 1319):
        expected = TTestPower().solve_power(nobs=tasks, alpha=0.05, power=0.8)
        assert comparison.detectable_effect(0.3, tasks, 0.05) == pytest.approx(0.3 * expected, rel=3e-3)
    for effect in (0.01, 0.05, 0.2):
        expected = TTestPower().solve_power(effect_size=effect / 0.4, alpha=0.05, power=0.8)
        assert comparison.tasks_needed(0.4, effect, 0.05) == pytest.approx(expected, abs=1)
    assert comparison.detectable_effect(0.0, 100, 0.05) is comparison.tasks_needed(0.0, 0.1, 0.05) is None


def test_holms_correction_is_that_of_statsmodels() -> None:
    values = [0.01, 0.04, 0.03, 0.005, 0.9, 0.04]
    assert comparison.holm(values) == pytest.approx(multitest.multipletests(values, method="holm")[1])
    assert comparison.holm([]) == []
