from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.services.datasets.spread import spread
from rollyard.services.metrics.comparison import paired
from rollyard.services.metrics.confidence_intervals import share_bounds, t_975
from rollyard.services.metrics.estimators import clustered_mean, mean, passes, pearson, sign_test

rewards = st.floats(-100, 100).map(lambda value: round(value, 3))


@st.composite
def tasks(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(measured, solved) of a few tasks, small enough to look at every subset."""
    measured = draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    return [(n, draw(st.integers(0, n))) for n in measured]


@settings(deadline=None)
@given(tasks())
def test_pass_at_k_is_the_share_of_all_subsets_of_k_rollouts_with_a_solved_one(found: list[tuple[int, int]]) -> None:
    check_subsets(found, any_of=True)


@settings(deadline=None)
@given(tasks())
def test_pass_hat_k_is_the_share_of_all_subsets_of_k_rollouts_that_are_all_solved(found: list[tuple[int, int]]) -> None:
    check_subsets(found, any_of=False)


def check_subsets(found: list[tuple[int, int]], *, any_of: bool) -> None:
    measured, solved = np.array(found).T
    for one in passes(measured, solved, 7):
        shares = []
        for n, c in found:
            if n >= one.k:
                subsets = list(combinations([True] * c + [False] * (n - c), one.k))
                shares.append(Fraction(sum((any if any_of else all)(subset) for subset in subsets), len(subsets)))
        estimate = one.any if any_of else one.every
        assert one.tasks == len(shares)
        assert estimate.mean == pytest.approx(float(sum(shares) / len(shares)), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 512), st.data())
def test_many_repeats_lose_no_digits(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    one = passes(np.array([n]), np.array([c]), k)[-1]
    assert one.any.mean == pytest.approx(1 - float(Fraction(math.comb(n - c, k), math.comb(n, k))), abs=1e-12)
    assert one.every.mean == pytest.approx(float(Fraction(math.comb(c, k), math.comb(n, k))), rel=1e-11, abs=1e-300)


def test_pass_at_1_and_its_interval_are_the_success_rates() -> None:
    solved = np.array([0, 3, 4, 1])
    one = passes(np.full(4, 4), solved, 1)[0]
    values = np.concatenate([np.arange(4) < count for count in solved]).astype(float)
    rate = clustered_mean(values, np.arange(0, 16, 4), is_share=True)
    assert one.any == one.every
    for name in ("mean", "stderr", "low", "high"):
        assert getattr(one.any, name) == pytest.approx(getattr(rate, name), rel=1e-12)


@settings(deadline=None)
@given(st.lists(st.tuples(rewards, rewards), min_size=2, max_size=40))
def test_pearson_is_numpys(pairs: list[tuple[float, float]]) -> None:
    x, y = np.array(pairs).T
    found = pearson(x, y)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert found is None
    else:
        assert found is not None and -1 <= found <= 1
        assert found == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)


@settings(deadline=None)
@given(st.lists(rewards, min_size=1, max_size=60), st.randoms())
def test_a_mean_does_not_depend_on_the_order_of_the_rollouts(values: list[float], dice: object) -> None:
    shuffled = sorted(values)
    assert mean(np.array(values)) == mean(np.array(shuffled)) == float(sum(map(Fraction, values))) / len(values)


@st.composite
def clusters(draw: st.DrawFn) -> list[list[float]]:
    return draw(st.lists(st.lists(rewards, min_size=1, max_size=6), min_size=2, max_size=8))


@settings(deadline=None)
@given(clusters())
def test_the_clustered_error_is_the_textbooks(found: list[list[float]]) -> None:
    values = np.array([value for cluster in found for value in cluster])
    starts = np.cumsum([0, *(len(cluster) for cluster in found[:-1])])
    estimate = clustered_mean(values, starts)
    center = math.fsum(values) / len(values)
    # Miller 2024: the sum over clusters of all products of two deviations within it.
    variance = sum((a - center) * (b - center) for cluster in found for a, b in product(cluster, cluster))
    count = len(found)
    variance = variance / len(values) ** 2 * count / (count - 1)
    if estimate.stderr is None:
        assert variance == pytest.approx(0, abs=1e-12)
    else:
        assert estimate.stderr == pytest.approx(math.sqrt(max(variance, 0)), rel=1e-6, abs=1e-9)
        assert estimate.low == pytest.approx(center - t_975(count - 1) * estimate.stderr)
        assert estimate.high == pytest.approx(center + t_975(count - 1) * estimate.stderr)


@settings(deadline=None)
@given(st.lists(rewards, min_size=2, max_size=50))
def test_tasks_of_one_rollout_have_the_standard_error_of_independent_samples(values: list[float]) -> None:
    array = np.array(values)
    estimate = clustered_mean(array, np.arange(len(array)))
    assert (estimate.stderr or 0.0) == pytest.approx(array.std(ddof=1) / math.sqrt(len(array)), rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_equal_repeats_give_the_t_interval_of_the_tasks_means(repeats: int, count: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(count, repeats))
    estimate = clustered_mean(values.ravel(), np.arange(0, count * repeats, repeats))
    means = values.mean(axis=1)
    assert estimate.stderr == pytest.approx(means.std(ddof=1) / math.sqrt(count), rel=1e-9)


def test_nineteen_of_twenty_intervals_hold_the_truth_though_repeats_of_a_task_are_alike() -> None:
    dice = np.random.default_rng(7)
    held = naive = 0
    for _ in range(1000):
        ease = dice.normal(0.0, 1.0, size=(12, 1))
        values = ease + dice.normal(0.0, 0.5, size=(12, 8))
        estimate = clustered_mean(values.ravel(), np.arange(0, 96, 8))
        assert estimate.low is not None and estimate.high is not None
        held += estimate.low <= 0.0 <= estimate.high
        naive += abs(values.mean()) <= 1.96 * values.std(ddof=1) / math.sqrt(values.size)
    assert 930 <= held <= 970
    assert naive < 700


@pytest.mark.parametrize("values", [[1.0], [0.1] * 7, [0.0, 0.0]])
def test_without_a_spread_between_tasks_there_is_no_interval(values: list[float]) -> None:
    estimate = clustered_mean(np.array(values), np.arange(len(values)))
    assert estimate.low is estimate.high is estimate.stderr is None


def test_an_interval_of_a_share_stays_within_0_and_1() -> None:
    estimate = clustered_mean(np.array([1.0, 1.0, 0.0]), np.arange(3), is_share=True)
    assert (estimate.low, estimate.high) == (0.0, 1.0)


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("tasks", [1, 2, 30, 1319])
def test_a_share_of_0_or_100_percent_has_a_bound_that_the_number_of_tasks_gives(share: float, tasks: int) -> None:
    repeats = 8
    estimate = clustered_mean(np.full(tasks * repeats, share), np.arange(0, tasks * repeats, repeats), is_share=True)
    assert estimate.stderr is None and estimate.low is not None and estimate.high is not None
    other_end = estimate.high if share == 0 else 1 - estimate.low
    # Were the share beyond it, so many tasks alike would come in less than 5 of 100 runs.
    assert (1 - other_end) ** tasks == pytest.approx(0.05)
    if tasks >= 30:
        assert other_end == pytest.approx(3 / tasks, rel=0.06)  # the rule of three
    any_of = passes(np.full(tasks, repeats), np.full(tasks, int(share * repeats)), repeats)[-1].any
    assert (any_of.low, any_of.high) == (estimate.low, estimate.high)


def test_nineteen_of_twenty_bounds_at_0_hold_the_truth_though_repeats_of_a_task_are_alike() -> None:
    # One task in 50 is always solved, the others never: the worst case for a bound on rollouts.
    dice, truth, tasks, missed, missed_by_rollouts, runs = np.random.default_rng(3), 0.05, 40, 0, 0, 4000
    for _ in range(runs):
        if not (dice.random(tasks) < truth).any():
            missed += share_bounds(0.0, tasks)[1] < truth  # type: ignore[index]
            missed_by_rollouts += share_bounds(0.0, tasks * 8)[1] < truth  # type: ignore[index]
    assert missed / runs <= 0.05 < missed_by_rollouts / runs


def test_equal_shares_within_0_and_1_have_an_interval_of_their_tasks() -> None:
    estimate = clustered_mean(np.tile([1.0, 0.0], 100), np.arange(0, 200, 2), is_share=True)
    assert estimate.stderr is None
    assert estimate.low == pytest.approx(0.4038, abs=1e-4) and estimate.high == pytest.approx(0.5962, abs=1e-4)
    alone = clustered_mean(np.array([1.0, 0.0]), np.array([0]), is_share=True)
    assert alone.low is alone.high is None


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 10, 11, 12, 20, 199, 100_000])
def test_the_t_quantile_leaves_two_and_a_half_percent_above_it(freedom: int) -> None:
    # Integrate the density from 0: half of it is below.
    x = np.linspace(0.0, t_975(freedom), 200_001)
    density = np.exp(
        math.lgamma((freedom + 1) / 2)
        - math.lgamma(freedom / 2)
        - 0.5 * math.log(freedom * math.pi)
        - (freedom + 1) / 2 * np.log1p(x**2 / freedom)
    )
    below = 0.5 + float(np.mean(density[1:] + density[:-1])) / 2 * x[-1]
    assert below == pytest.approx(0.975, abs=3e-7)


@settings(deadline=None)
@given(st.integers(0, 12), st.integers(0, 12))
def test_the_sign_test_counts_all_outcomes_as_far_out(up: int, down: int) -> None:
    changes = up + down
    found = sign_test(up, down)
    if not changes:
        assert found is None
        return
    far = sum(math.comb(changes, heads) for heads in range(changes + 1) if abs(2 * heads - changes) >= abs(up - down))
    assert found == pytest.approx(far / 2**changes)


def test_the_sign_test_of_many_changes_goes_on_where_the_exact_one_ends() -> None:
    exact, near = sign_test(540, 460), sign_test(540, 461)
    assert exact is not None and near is not None
    assert near == pytest.approx(exact, rel=0.1)


@settings(deadline=None)
@given(st.lists(rewards, min_size=2, max_size=30))
def test_a_paired_interval_is_that_of_the_differences(values: list[float]) -> None:
    differences = np.array(values)
    estimate = paired(differences)
    assert estimate.mean == pytest.approx(differences.mean(), abs=1e-12)
    assert (estimate.stderr or 0.0) == pytest.approx(differences.std(ddof=1) / math.sqrt(len(values)), abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.one_of(rewards, st.just(math.nan)), max_size=30))
def test_a_spread_leaves_out_what_is_not_recorded(values: list[float]) -> None:
    found = spread(np.array(values))
    there = [value for value in values if not math.isnan(value)]
    if not there:
        assert found is None
        return
    assert found is not None
    assert (found.rollouts, found.min, found.max) == (len(there), min(there), max(there))
    assert found.median == pytest.approx(np.median(there))
    assert found.p95 == pytest.approx(np.quantile(there, 0.95))
