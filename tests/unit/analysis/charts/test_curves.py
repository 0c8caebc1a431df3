"""Pictures of curves: the mean over seeds with its band, as an SVG file that stands alone."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rollyard.analysis.charts.curves import main, mean_curve
from rollyard.analysis.metrics.training_steps import Curve
from rollyard.records.errors import OperatorError
from tests.support.training_runs import training_run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Three seeds of a run of 30 steps."""
    for seed in range(3):
        training_run(tmp_path / f"seed_{seed}", 30, seed=seed)
    return [str(tmp_path / f"seed_{seed}") for seed in range(3)]


def drawn(tmp_path: Path, *arguments: str) -> ElementTree.Element:
    output = tmp_path / "curves.svg"
    assert main([*arguments, "--output", str(output)]) == 0
    return ElementTree.fromstring(output.read_text())


def count(root: ElementTree.Element, tag: str, kind: str) -> int:
    return sum(1 for one in root.iter(f"{SVG}{tag}") if kind in (one.get("class") or "").split())


def test_the_band_is_the_95_percent_interval_of_the_mean_over_runs() -> None:
    runs = [Curve("eval/x", (0, 10), (value, 2 * value)) for value in (1.0, 2.0, 3.0)]
    found = mean_curve(runs, is_share=False)
    reach = 4.3026527297 * 1.0 / 3**0.5  # t with 2 degrees of freedom
    assert found.means == (2.0, 4.0)
    assert found.bands[0] == pytest.approx((2 - reach, 2 + reach))


def test_only_steps_that_all_runs_have_are_drawn_and_the_band_of_a_share_ends_at_0_and_1() -> None:
    curves = [Curve("x", (1, 2, 3), (1.0,) * 3), Curve("x", (2, 3, 4, 5), (0.9,) * 4)]
    found = mean_curve(curves, is_share=True)
    assert (found.steps, found.left_out) == ((2, 3), 3)
    assert found.bands[0] is not None and found.bands[0][1] == 1.0


def test_the_few_values_of_evaluations_are_not_smoothed() -> None:
    few, many = Curve("eval/x", (0, 25, 50), (0.3, 0.4, 0.5)), Curve("x", tuple(range(20)), (0.0, 1.0) * 10)
    assert mean_curve([few], is_share=True, smooth=True).means == few.values
    assert max(mean_curve([many], is_share=True, smooth=True).means) < 1.0


def test_seeds_become_one_line_with_a_band(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = drawn(tmp_path, *runs, "--metric", "eval/correct_rate")
    assert (count(root, "polyline", "line"), count(root, "polygon", "band")) == (1, 1)
    printed = capsys.readouterr().out
    assert re.search(r"eval/correct_rate, 3 .*: 20\.0% \(95% .*20\.0% .*20\.0%\) .*\b0\b", printed)


def test_each_metric_has_a_panel(runs: list[str], tmp_path: Path) -> None:
    root = drawn(tmp_path, runs[0], "--metric", "train/reward", "--metric", "train/entropy", "--smooth")
    assert (count(root, "text", "panel"), count(root, "polyline", "line")) == (2, 2)
    assert count(root, "polygon", "band") == 0  # a single run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no training run"),
        (["{0}", "--metric", "train/rewards"], "'train/rewards', .*'train/reward'"),
        (["{0}/missing"], r"missing/metrics\.jsonl"),
    ],
)
def test_a_wrong_command_line_is_refused_in_words(
    runs: list[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    with pytest.raises(OperatorError, match=message):
        drawn(tmp_path, *(argument.format(runs[0]) for argument in arguments))
