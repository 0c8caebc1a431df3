from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rollyard.analysis.metrics.comparison import paired
from rollyard.analysis.metrics.estimators import clustered_mean, passes, sign_test
from rollyard.records.scores import spread, t_975

rewards = st.floats(-100, 100).map(lambda value: round(value, 3))


counts_of_tasks = st.lists(
    st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1, max_size=5
)
"""(measured, solved) of a few tasks, small enough to enumerate every subset."""


@pytest.mark.parametrize("any_of", [True, False])
@settings(max_examples=30)
@given(counts=counts_of_tasks)
def test_pass_at_k_and_pass_hat_k_are_shares_of_k_subsets(counts: list[tuple[int, int]], any_of: bool) -> None:
    measured, solved = np.array(counts).T
    for result in passes(measured, solved, 7):
        shares = []
        for n, c in counts:
            if n >= result.k:
                subsets = list(combinations([True] * c + [False] * (n - c), result.k))
                shares.append(Fraction(sum((any if any_of else all)(subset) for subset in subsets), len(subsets)))
        estimate = result.any if any_of else result.every
        assert result.tasks == len(shares)
        assert estimate.mean == pytest.approx(float(sum(shares) / len(shares)), abs=1e-12)


@settings(max_examples=30)
@given(st.integers(1, 512), st.data())
def test_pass_at_k_is_exact_for_many_repeats(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    result = passes(np.array([n]), np.array([c]), k)[-1]
    assert result.any.mean == pytest.approx(1 - float(Fraction(math.comb(n - c, k), math.comb(n, k))), abs=1e-12)
    assert result.every.mean == pytest.approx(float(Fraction(math.comb(c, k), math.comb(n, k))), rel=1e-11, abs=1e-300)


@settings(max_examples=30)
@given(st.lists(st.lists(rewards, min_size=1, max_size=6), min_size=2, max_size=8))
def test_the_clustered_error_matches_the_formula_of_miller_2024(groups: list[list[float]]) -> None:
    values = np.array([value for group in groups for value in group])
    starts = np.cumsum([0, *(len(group) for group in groups[:-1])])
    estimate = clustered_mean(values, starts)
    center = math.fsum(values) / len(values)
    # Miller 2024: the sum over clusters of all products of two deviations within it.
    variance = sum((a - center) * (b - center) for group in groups for a, b in product(group, group))
    count = len(groups)
    variance = variance / len(values) ** 2 * count / (count - 1)
    assert (estimate.stderr or 0.0) == pytest.approx(math.sqrt(max(variance, 0)), rel=1e-6, abs=1e-6)
    if estimate.stderr is not None:
        reach = t_975(count - 1) * estimate.stderr
        assert (estimate.low, estimate.high) == pytest.approx((center - reach, center + reach))


def test_95_percent_of_intervals_cover_the_true_mean_with_correlated_repeats() -> None:
    dice = np.random.default_rng(7)
    covered = naive_covered = 0
    for _ in range(1000):
        values = dice.normal(0.0, 1.0, size=(12, 1)) + dice.normal(0.0, 0.5, size=(12, 8))
        estimate = clustered_mean(values.ravel(), np.arange(0, 96, 8))
        assert estimate.low is not None and estimate.high is not None
        covered += estimate.low <= 0.0 <= estimate.high
        naive_covered += abs(values.mean()) <= 1.96 * values.std(ddof=1) / math.sqrt(values.size)
    assert 930 <= covered <= 970 and naive_covered < 700


WILSON = pytest.approx((0.4038, 0.5962), abs=1e-4)


@pytest.mark.parametrize(
    ("values", "repeats", "is_share", "interval"),
    [
        *(([1.0], 1, False, (None, None)), ([0.1] * 7, 1, False, (None, None)), ([1.0, 0.0], 2, True, (None, None))),
        *(
            ([1.0, 1.0, 0.0], 1, True, (0.0, 1.0)),
            ([1.0, 0.0] * 100, 2, True, pytest.approx((0.4038, 0.5962), abs=1e-4)),
        ),
    ],
)
def test_equal_values_have_no_interval_but_equal_shares_of_tasks_have_wilsons_which_ends_at_0_and_1(
    values: list[float], repeats: int, is_share: bool, interval: object
) -> None:
    estimate = clustered_mean(np.array(values), np.arange(0, len(values), repeats), is_share=is_share)
    assert (estimate.low, estimate.high) == interval


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("tasks", [1, 2, 30, 1319])
def test_a_share_of_0_or_100_percent_has_a_bound_from_the_number_of_tasks(share: float, tasks: int) -> None:
    repeats = 8
    estimate = clustered_mean(np.full(tasks * repeats, share), np.arange(0, tasks * repeats, repeats), is_share=True)
    assert estimate.stderr is None and estimate.low is not None and estimate.high is not None
    bound = estimate.high if share == 0 else 1 - estimate.low
    # If the true share were beyond the bound, so many equal tasks would occur in less than 5% of runs.
    assert (1 - bound) ** tasks == pytest.approx(0.05)
    if tasks >= 30:
        assert bound == pytest.approx(3 / tasks, rel=0.06)  # the rule of three
    any_of = passes(np.full(tasks, repeats), np.full(tasks, int(share * repeats)), repeats)[-1].any
    assert (any_of.low, any_of.high) == (estimate.low, estimate.high)


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 10, 11, 12, 20, 199, 100_000])
def test_the_t_quantile_is_that_of_scipy(degrees: int) -> None:
    assert stats.t.cdf(t_975(degrees), degrees) == pytest.approx(0.975, abs=3e-7)


@pytest.mark.parametrize(("up", "down"), [(0, 0), (3, 0), (2, 2), (9, 4), (1, 12), (540, 460), (5400, 5100)])
def test_the_sign_test_is_that_of_scipy(up: int, down: int) -> None:
    expected = stats.binomtest(up, up + down).pvalue if up + down else None
    assert sign_test(up, down) == (expected if expected is None else pytest.approx(expected, rel=1e-2))


@settings(max_examples=30)
@given(st.lists(rewards, min_size=2, max_size=30))
def test_the_paired_estimate_is_the_mean_and_error_of_the_differences(values: list[float]) -> None:
    differences = np.array(values)
    estimate = paired(differences)
    assert estimate.mean == pytest.approx(differences.mean(), abs=1e-12)
    assert (estimate.stderr or 0.0) == pytest.approx(differences.std(ddof=1) / math.sqrt(len(values)), abs=1e-9)


@pytest.mark.parametrize("values", [[], [math.nan], [3.0], [1.0, math.nan, 2.5, -4.0]])
def test_a_spread_ignores_missing_values(values: list[float]) -> None:
    summary, recorded = spread(np.array(values)), [value for value in values if not math.isnan(value)]
    assert (summary is None) == (not recorded)
    if summary is not None:
        assert (summary.rollouts, summary.min, summary.max) == (len(recorded), min(recorded), max(recorded))
        assert (summary.median, summary.p95) == pytest.approx((np.median(recorded), np.quantile(recorded, 0.95)))
