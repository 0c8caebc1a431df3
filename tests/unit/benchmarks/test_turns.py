"""The interval of a ratio that was measured several times."""

from __future__ import annotations

from benchmarks.turns import interval


def test_the_interval_of_a_median_ratio_leaves_out_a_single_outlier() -> None:
    low, high = interval([0.98, 0.99, 1.0, 1.0, 1.01, 1.01, 1.02, 9.0])
    assert 0.98 <= low < 1.0 < high < 1.1
