"""Curves: pictures of the mean over seeds with its band, and the charts of a training run."""

from __future__ import annotations

import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rollyard.analysis.charts.charts import Chart
from rollyard.analysis.charts.curves import CATALOG, charted, main, mean_curve, training_charts
from rollyard.analysis.metrics.training_steps import Curve, MetricsFile
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from tests.support.training_runs import step_values, training_run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [str(training_run(tmp_path / f"seed_{seed}", 30, seed=seed).metrics.parent) for seed in range(3)]


def drawn(tmp_path: Path, *arguments: str) -> ElementTree.Element:
    output = tmp_path / "curves.svg"
    assert main([*arguments, "--output", str(output)]) == 0
    return ElementTree.fromstring(output.read_text())


def count(root: ElementTree.Element, tag: str, kind: str) -> int:
    return sum(1 for one in root.iter(f"{SVG}{tag}") if kind in (one.get("class") or "").split())


def test_the_band_is_the_95_percent_interval_of_the_mean_at_the_steps_that_all_runs_have() -> None:
    found = mean_curve([Curve("x", (0, 10), (value, 2 * value)) for value in (1.0, 2.0, 3.0)], is_share=False)
    reach = 4.3026527297 * 1.0 / 3**0.5  # t with 2 degrees of freedom
    assert found.means == (2.0, 4.0) and found.bands[0] == pytest.approx((2 - reach, 2 + reach))
    shares = mean_curve([Curve("x", (1, 2, 3), (1.0,) * 3), Curve("x", (2, 3, 4, 5), (0.9,) * 4)], is_share=True)
    assert (shares.steps, shares.left_out) == ((2, 3), 3)
    assert shares.bands[0] is not None and shares.bands[0][1] == 1.0
    few, many = curve("eval/x", 0.3, 0.4, 0.5), curve("x", *([0.0, 1.0] * 10))
    assert mean_curve([few], is_share=True, smooth=True).means == few.values  # those of evaluations are not smoothed
    assert max(mean_curve([many], is_share=True, smooth=True).means) < 1.0


def test_each_metric_has_a_panel_and_seeds_become_one_line_with_a_band(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = drawn(tmp_path, runs[0], "--metric", "train/reward", "--metric", "train/entropy", "--smooth")
    found = [count(root, *one) for one in (("text", "panel"), ("polyline", "line"), ("polygon", "band"))]
    assert found == [2, 2, 0]  # a single run has no band
    capsys.readouterr()
    root = drawn(tmp_path, *runs, "--metric", "eval/correct_rate")
    assert (count(root, "polyline", "line"), count(root, "polygon", "band")) == (1, 1)
    printed = capsys.readouterr().out
    assert re.search(r"eval/correct_rate, 3 .*: 20\.0% \(95% .*20\.0% .*20\.0%\) .*\b0\b", printed)


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


ATTACK = """</title></svg><script>alert(1)</script>'&\u202e"""


def curve(name: str, *values: float) -> Curve:
    return Curve(name, tuple(range(1, len(values) + 1)), values)


def charts_of(*curves: Curve) -> list[Chart]:
    groups, _ = training_charts({one.name: one for one in curves})
    return [chart for group in groups for chart in group.charts]


def test_every_metric_has_a_chart_or_is_0_in_every_step(tmp_path: Path) -> None:
    file = MetricsFile(training_run(tmp_path / "run", 30).metrics)
    file.advance()
    groups, zero = training_charts(file.curves())
    shown = {name for group in groups for chart in group.charts for name in chart.name.split("|")}
    assert shown | set(zero) == set(file.curves()) and not shown & set(zero)
    assert [group.title for group in groups] == ["Reward", "Evaluation", "Rollouts", "Update", "Weights", "Time"]


def test_each_metric_is_drawn_once_and_an_unknown_one_has_a_chart_of_its_own() -> None:
    names = ["train/reward", "train/reward/a", "train/reward_std", "train/ending/done", "eval/x", "other"]
    assert sorted(name for one in charted(names) for name in one.names) == sorted(names)
    [chart] = charts_of(curve("train/curiosity", 1.0, 2.0))
    assert chart.title == "train/curiosity" and chart.caption.startswith("2 at step 2, range 1 to 2.")


@pytest.mark.parametrize("steps", [1, 2, 500, 20_000])
def test_a_chart_stays_small_for_any_number_of_steps(steps: int) -> None:
    numbers = random.Random(0)
    [chart] = charts_of(curve("train/reward", *(numbers.random() for _ in range(steps))))
    assert len(chart.svg) < 200_000
    marks = [one for one in ElementTree.fromstring(chart.svg).iter() if one.get("class") == "mark"]
    assert len(marks) == min(steps, 240)


def test_a_tooltip_has_the_mean_and_range_of_its_steps_and_a_constant_is_drawn_from_0() -> None:
    [chart] = charts_of(curve("train/correct_rate", *([0.0, 0.5] * 240)))
    assert "<title>steps 1 to 2: mean 25.0%, 0.0% to 50.0%</title>" in chart.svg
    [constant] = charts_of(curve("train/learning_rate", 0.001, 0.001))
    labels = [one.text for one in ElementTree.fromstring(constant.svg).iter("text") if one.get("class") == "end"]
    assert labels[0] == "0" and labels[-1] == "0.001"  # its distance from 0


@pytest.mark.parametrize("values", [(0.5,), (1e-300, 2e-300), (-1e60, 1e60), (1.0, 1.0 + 1e-15), (3.0, 3.0)])
def test_extreme_and_constant_values_can_be_drawn(values: tuple[float, ...]) -> None:
    for name in ("train/loss", "train/correct_rate", "train/skipped_groups"):
        [chart] = charts_of(curve(name, *values))
        assert "nan" not in chart.svg and "inf" not in chart.svg


def test_names_from_environments_are_escaped() -> None:
    [chart] = charts_of(curve(f"train/reward/{ATTACK}", 1.0, 2.0))
    tags = {one.tag for one in ElementTree.fromstring(chart.svg).iter()}
    assert tags <= {"svg", "g", "title", "text", "line", "rect", "path", "polyline"} and "\u202e" not in chart.title


def test_the_documentation_defines_every_metric() -> None:
    text = (INSTALLED / "docs" / "training.md").read_text()
    names = [*step_values(1, random.Random(0)), *(name for one in CATALOG for name in one.names)]
    shown = [name if name[-1] != "/" else f"{name}<" for name in names if name.count("/") == 1 or name[-1] == "/"]
    assert [name for name in shown if f"`{name.rstrip('<')}" not in text] == []
