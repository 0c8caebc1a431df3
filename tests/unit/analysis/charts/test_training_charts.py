"""Charts of a training run: every metric has one, over the same steps, bounded in size."""

from __future__ import annotations

import random
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rollyard.analysis.charts.charts import Chart
from rollyard.analysis.charts.curves import CATALOG, charted, moving_average, training_charts
from rollyard.analysis.metrics.training_steps import Curve, MetricsFile
from rollyard.records.search_path import INSTALLED
from tests.support.training_runs import step_values, training_run

ATTACK = """</title></svg><script>alert(1)</script>'&\u202e"""


def curve(name: str, *values: float) -> Curve:
    return Curve(name, tuple(range(1, len(values) + 1)), values)


def drawn(*curves: Curve) -> list[Chart]:
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
    [chart] = drawn(curve("train/curiosity", 1.0, 2.0))
    assert chart.title == "train/curiosity" and chart.caption.startswith("2 at step 2, range 1 to 2.")


@pytest.mark.parametrize("steps", [1, 2, 500, 20_000])
def test_a_chart_stays_small_for_any_number_of_steps(steps: int) -> None:
    numbers = random.Random(0)
    [chart] = drawn(curve("train/reward", *(numbers.random() for _ in range(steps))))
    assert len(chart.svg) < 200_000
    marks = [one for one in ElementTree.fromstring(chart.svg).iter() if one.get("class") == "mark"]
    assert len(marks) == min(steps, 240)


def test_the_tooltip_of_several_steps_has_their_mean_and_range() -> None:
    [chart] = drawn(curve("train/correct_rate", *([0.0, 0.5] * 240)))
    titles = [one.text or "" for one in ElementTree.fromstring(chart.svg).iter("title")]
    assert titles[0] == "steps 1 to 2: mean 25.0%, 0.0% to 50.0%"


@pytest.mark.parametrize("values", [(0.5,), (1e-300, 2e-300), (-1e60, 1e60), (1.0, 1.0 + 1e-15), (3.0, 3.0)])
def test_extreme_and_constant_values_can_be_drawn(values: tuple[float, ...]) -> None:
    for name in ("train/loss", "train/correct_rate", "train/skipped_groups"):
        [chart] = drawn(curve(name, *values))
        assert "nan" not in chart.svg and "inf" not in chart.svg


def test_a_constant_is_drawn_with_its_distance_from_0() -> None:
    [chart] = drawn(curve("train/learning_rate", 0.001, 0.001))
    labels = [one.text for one in ElementTree.fromstring(chart.svg).iter("text") if one.get("class") == "end"]
    assert labels[0] == "0" and labels[-1] == "0.001"


def test_names_from_environments_are_escaped() -> None:
    [chart] = drawn(curve(f"train/reward/{ATTACK}", 1.0, 2.0))
    tags = {one.tag for one in ElementTree.fromstring(chart.svg).iter()}
    assert tags <= {"svg", "g", "title", "text", "line", "rect", "path", "polyline"} and "\u202e" not in chart.title


def test_a_moving_average_is_the_mean_of_the_neighbours() -> None:
    assert moving_average([0.0, 0.0, 5.0, 0.0, 0.0]) == pytest.approx([5 / 3, 1.25, 1.0, 1.25, 5 / 3])


def test_the_documentation_defines_every_metric() -> None:
    text = (INSTALLED / "docs" / "training.md").read_text()
    names = [*step_values(1, random.Random(0)), *(name for one in CATALOG for name in one.names)]
    shown = [name if name[-1] != "/" else f"{name}<" for name in names if name.count("/") == 1 or name[-1] == "/"]
    assert [name for name in shown if f"`{name.rstrip('<')}" not in text] == []
