"""cons@k stands beside pass@k in every output, and in none if the environment records no answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from rollyard.analysis.charts.run_charts import profile_charts
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.report.document import Report, html, markdown
from rollyard.analysis.report.terminal_summary import summary, task_rows
from rollyard.records.types import Json
from tests.support.rollout_files import grid, load_run, solved

ANSWERS = (("7", "7", "8"), ("7", "8", "8"))


def answered(answers: Sequence[Sequence[str]], **more: str) -> list[Json]:
    return [
        solved(task, repeat, one == "7", extracted_answer=one, **more)
        for task, own in enumerate(answers)
        for repeat, one in enumerate(own)
    ]


def report(run: Run) -> Report:
    return Report(version="1", runs=[run.profile], differences=[])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_run(tmp_path, answered(ANSWERS))


def test_reports_and_the_terminal_state_cons_at_k_with_its_interval(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    text = markdown(report(run))
    assert "| cons@3 | 50.00% (over 2 tasks) |" in text
    assert "## pass@k, pass^k and cons@k" in text
    assert "| k | pass@k | 95% interval | pass^k | 95% interval | cons@k | 95% interval | tasks |" in text
    assert "cons@3" in html(report(run)) and "cons@k: " in html(report(run))
    summary(report(run), [])
    assert "cons@3                  50.00% (over 2 tasks)" in capsys.readouterr().out
    assert (
        orjson.loads(orjson.dumps(report(run).model_dump()))["runs"][0]["tasks"]["pass_at"][2]["consensus"]["mean"]
        == 0.5
    )


def test_the_chart_has_a_line_for_cons_at_k(run: Run) -> None:
    (chart,) = [one for one in profile_charts(run.profile) if one.name == "pass_at"]
    assert chart.svg.count("cons@") >= 3
    assert " 50" in chart.caption


def test_a_mixture_states_cons_at_k_by_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    games = [{**one, "_ng_task_index": 5, "dataset_name": "sokoban"} for one in grid([2], 3)]
    mixed = load_run(tmp_path, [*answered(ANSWERS, dataset_name="gsm8k"), *games])
    text = markdown(report(mixed))
    assert "| pass@3 100.00% | cons@3 50.00% |" in text and "| pass@3 100.00% | – |" in text
    summary(report(mixed), [])
    assert "cons@3 50.00%" in capsys.readouterr().out


def test_task_rows_state_whether_the_most_common_answer_is_right(run: Run) -> None:
    assert [orjson.loads(one)["majority_correct"] for one in task_rows(run, None, None)] == [True, False]
