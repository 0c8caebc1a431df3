"""Whatever a task calls its metrics, they end in one table."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.errors import RunError
from services.evaluation.benchmarks import QWEN3_1_7B_BASE, Benchmark
from services.evaluation.scores import Score, as_csv, as_markdown, newest, read_scores

GSM8K = {
    "alias": "gsm8k",
    "exact_match,strict-match": 0.7,
    "exact_match_stderr,strict-match": 0.01,
    "exact_match,flexible-extract": 0.75,
    "exact_match_stderr,flexible-extract": "N/A",
}


def scores(path: Path, benchmark: str, **results: Any) -> list[Score]:
    file = path / "results_2026.json"
    file.write_bytes(orjson.dumps({"results": results, "n-samples": {name: {"effective": 5} for name in results}}))
    return read_scores(file, Benchmark.read(benchmark), "step_40", 40, QWEN3_1_7B_BASE)


def test_several_filters_of_a_metric_are_told_apart_and_compared_each_with_its_own_baseline(tmp_path: Path) -> None:
    strict, flexible = scores(tmp_path, "gsm8k:8", gsm8k=GSM8K)
    assert (strict.metric, strict.value, strict.stderr, strict.samples) == ("exact_match/strict-match", 0.7, 0.01, 5)
    assert (flexible.metric, flexible.stderr) == ("exact_match/flexible-extract", None)
    assert strict.difference == pytest.approx(0.7 - 0.6892)
    assert flexible.difference == pytest.approx(0.75 - 0.696)


@pytest.mark.parametrize(
    ("benchmark", "key", "baseline"),
    [("humaneval:0", "pass@1,create_test", 0.4878), ("mbpp:3", "pass_at_1,none", 0.558)],
)
def test_code_tasks_have_one_name_for_pass_at_1(tmp_path: Path, benchmark: str, key: str, baseline: float) -> None:
    (score,) = scores(tmp_path, benchmark, **{benchmark.split(":")[0]: {key: 0.5}})
    assert (score.metric, score.baseline) == ("pass@1", baseline)


def test_another_number_of_examples_has_no_baseline(tmp_path: Path) -> None:
    assert [one.baseline for one in scores(tmp_path, "gsm8k:5", gsm8k=GSM8K)] == [None, None]


def test_a_groups_subtasks_are_rows_of_their_own(tmp_path: Path) -> None:
    found = scores(
        tmp_path,
        "hendrycks_math:4",
        hendrycks_math={"exact_match,none": 0.2, "alias": "hendrycks_math"},
        hendrycks_math_algebra={"exact_match,none": 0.3, "alias": " - algebra"},
    )
    assert [(one.task, one.value, one.baseline) for one in found] == [
        ("hendrycks_math", 0.2, 0.1768),
        ("hendrycks_math_algebra", 0.3, None),
    ]


def test_the_tables_say_the_same(tmp_path: Path) -> None:
    found = scores(tmp_path, "gsm8k:8", gsm8k=GSM8K)
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert [(row["step"], row["task"], row["metric"], row["value"]) for row in rows] == [
        ("40", "gsm8k", "exact_match/strict-match", "0.7"),
        ("40", "gsm8k", "exact_match/flexible-extract", "0.75"),
    ]
    assert "| 40 | step_40 | gsm8k | 8 | exact_match/strict-match | 70.00 ± 1.00 | 68.92 | +1.08 |" in as_markdown(
        found
    )


def test_the_newest_results_are_taken_and_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="wrote no results"):
        newest(tmp_path)
    for name in ("b/results_2026-01-02.json", "a/results_2026-01-03.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    assert newest(tmp_path).parent.name == "a"


def test_a_torn_results_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "results_1.json").write_text('{"results": {"gsm8k"')
    with pytest.raises(RunError, match=r"results_1\.json is no results file"):
        read_scores(tmp_path / "results_1.json", Benchmark(task="gsm8k"), "x", None)
