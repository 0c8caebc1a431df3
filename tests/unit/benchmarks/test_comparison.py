"""Comparisons with another commit: pairs in turn, the interval of their ratio, and the verdict."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.commands import ROOT
from benchmarks.comparison import Figure, Measure, Plan, Sample, against, compare, interval
from benchmarks.gate import BASELINE

BEFORE = Path("before")
COSTS = ((1.0, 0.02), (1.0, 0.05), (1.04, 0.02), (2.0, 0.0))
"""Ratio and measuring error."""


class Costs:
    """A figure that was 1.0 and is `now` times as much, with a measuring error that alternates."""

    def __init__(self, now: float, error: float = 0.0) -> None:
        self._now = now
        self._error = error
        self.order: list[str] = []

    @contextmanager
    def _prepare(self, commands: Path, folder: Path) -> Iterator[Measure]:
        def once(number: int) -> Sample:
            self.order.append("before" if commands == BEFORE else "now")
            return {"a": 0.5, "b": 0.5 if commands == BEFORE else self._now - 0.5 + self._error * (-1) ** number}

        yield once

    @property
    def figure(self) -> Figure:
        return Figure("cost", "ms", self._prepare)


def test_the_interval_of_a_median_ratio_leaves_out_a_single_outlier() -> None:
    low, high = interval([0.98, 0.99, 1.0, 1.0, 1.01, 1.01, 1.02, 9.0])
    assert 0.98 <= low < 1.0 < high < 1.1


def test_a_figure_is_worse_only_if_its_whole_interval_is_above_the_limit(tmp_path: Path) -> None:
    found = {now: compare(Costs(now, 0.02).figure, BEFORE, tmp_path / str(now), Plan()) for now in (1.0, 1.1)}
    assert [comparison.is_worse(1.03) for comparison in found.values()] == [False, True]
    assert [len(comparison.now) for comparison in found.values()] == [Plan.pairs, Plan.most_pairs]
    assert not compare(Costs(1.04, 0.05).figure, BEFORE, tmp_path / "unsure", Plan()).is_worse(1.03)


def test_the_nearer_a_figure_is_to_being_worse_the_more_pairs_are_measured(tmp_path: Path) -> None:
    pairs = {costs: len(compare(Costs(*costs).figure, BEFORE, tmp_path / str(costs), Plan()).now) for costs in COSTS}
    assert pairs == {(1.0, 0.02): 3, (1.0, 0.05): 6, (1.04, 0.02): 12, (2.0, 0.0): 12}


def test_the_two_of_a_pair_take_turns_in_being_first(tmp_path: Path) -> None:
    costs = Costs(2.0)
    compare(costs.figure, BEFORE, tmp_path / "costs", Plan(pairs=2, most_pairs=2))
    assert costs.order == ["now", "before", "before", "now"]


def test_medians_are_shown_by_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(Costs(2.0).figure, BEFORE, tmp_path / "costs", Plan()).show(1.03)
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()[4:6]] == [
        ["before", "1.00", "0.50", "0.50"],
        ["now", "2.00", "0.50", "1.50"],
    ]
    assert "2.000 times (2.000 to 2.000), 12 pairs, target <=1.03: ABOVE 1.03" in shown


def test_a_commit_that_the_clone_lacks_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert against("0" * 40, [], Plan()) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"the commit {'0' * 40} is not in {ROOT}; in a shallow clone: git fetch --unshallow"
    ]


def test_the_baseline_is_an_earlier_commit_of_this_branch() -> None:
    subprocess.run(["git", "-C", ROOT, "merge-base", "--is-ancestor", BASELINE.read_text().strip(), "HEAD"], check=True)
