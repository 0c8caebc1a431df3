"""All metrics of all tasks end up in one table."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.launchers.evaluation.lm_eval import (
    QWEN3_1_7B_BASE,
    Benchmark,
    BenchmarkScore,
    as_csv,
    as_markdown,
    newest,
    read_scores,
)
from rollyard.records.errors import RunError

GSM8K = {
    "alias": "gsm8k",
    "exact_match,strict-match": 0.7,
    "exact_match_stderr,strict-match": 0.01,
    "exact_match,flexible-extract": 0.75,
    "exact_match_stderr,flexible-extract": "N/A",
}


def scores(path: Path, benchmark: str, **results: Any) -> list[BenchmarkScore]:
    file = path / "results_2026.json"
    file.write_bytes(orjson.dumps({"results": results, "n-samples": {name: {"effective": 5} for name in results}}))
    return read_scores(file, Benchmark.read(benchmark), "step_40", 40, QWEN3_1_7B_BASE)


def test_each_filter_of_a_metric_is_compared_with_its_own_baseline(tmp_path: Path) -> None:
    strict, flexible = scores(tmp_path, "gsm8k:8", gsm8k=GSM8K)
    assert (strict.metric, strict.value, strict.stderr, strict.samples) == ("exact_match/strict-match", 0.7, 0.01, 5)
    assert (flexible.metric, flexible.stderr) == ("exact_match/flexible-extract", None)
    assert strict.difference == pytest.approx(0.7 - 0.6892)
    assert flexible.difference == pytest.approx(0.75 - 0.696)


@pytest.mark.parametrize(
    ("benchmark", "key", "baseline"),
    [("humaneval:0", "pass@1,create_test", 0.4878), ("mbpp:3", "pass_at_1,none", 0.558)],
)
def test_code_tasks_share_the_metric_name_pass_at_1(tmp_path: Path, benchmark: str, key: str, baseline: float) -> None:
    (score,) = scores(tmp_path, benchmark, **{benchmark.split(":")[0]: {key: 0.5}})
    assert (score.metric, score.baseline) == ("pass@1", baseline)


def test_a_different_number_of_examples_has_no_baseline(tmp_path: Path) -> None:
    assert [score.baseline for score in scores(tmp_path, "gsm8k:5", gsm8k=GSM8K)] == [None, None]


def test_subtasks_of_a_group_have_their_own_rows(tmp_path: Path) -> None:
    found = scores(
        tmp_path,
        "hendrycks_math:4",
        hendrycks_math={"exact_match,none": 0.2, "alias": "hendrycks_math"},
        hendrycks_math_algebra={"exact_match,none": 0.3, "alias": " - algebra"},
    )
    assert [(score.task, score.value, score.baseline) for score in found] == [
        ("hendrycks_math", 0.2, 0.1768),
        ("hendrycks_math_algebra", 0.3, None),
    ]


def test_the_csv_and_markdown_tables_agree(tmp_path: Path) -> None:
    found = scores(tmp_path, "gsm8k:8", gsm8k=GSM8K)
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert [(row["step"], row["task"], row["metric"], row["value"]) for row in rows] == [
        ("40", "gsm8k", "exact_match/strict-match", "0.7"),
        ("40", "gsm8k", "exact_match/flexible-extract", "0.75"),
    ]
    assert "| 40 | step_40 | gsm8k | 8 | exact_match/strict-match | 70.00 ± 1.00 | 68.92 | +1.08 |" in as_markdown(
        found
    )


@pytest.mark.parametrize(("value", "text"), [(0.0, "0.00 (at most 0.23)"), (1.0, "100.00 (at least 99.77)")])
def test_a_score_of_0_or_100_percent_shows_a_bound_instead_of_an_error(value: float, text: str) -> None:
    score = BenchmarkScore(
        step=1, checkpoint="c", task="gsm8k", num_fewshot=8, metric="exact_match", value=value, stderr=0.0, samples=1319
    )
    assert f"| {text} |" in as_markdown([score])


def test_the_newest_results_file_is_used_if_there_is_one(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    for name in ("b/results_2026-01-02.json", "a/results_2026-01-03.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    assert newest(tmp_path) == tmp_path / "a/results_2026-01-03.json"


def test_a_truncated_results_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "results_1.json").write_text('{"results": {"gsm8k"')
    with pytest.raises(RunError, match=r"results_1\.json"):
        read_scores(tmp_path / "results_1.json", Benchmark(task="gsm8k"), "x", None)


def read(path: Path, benchmark: str, text: str) -> list[BenchmarkScore]:
    (path / "results_1.json").write_text(text)
    return read_scores(path / "results_1.json", Benchmark.read(benchmark), "step_1", 1, QWEN3_1_7B_BASE)


def test_the_baseline_matches_the_number_of_examples_that_lm_eval_reports(tmp_path: Path) -> None:
    text = '{"results": {"mbpp": {"pass_at_1,none": 0.6}}, "n-shot": {"mbpp": 3}}'
    (score,) = read(tmp_path, "mbpp", text)
    assert (score.num_fewshot, score.baseline) == (3, 0.558)
    text = '{"results": {"ifeval": {"prompt_level_strict_acc,none": 0.3}}, "n-shot": {"ifeval": 0}}'
    assert [score.baseline for score in read(tmp_path, "ifeval:5", text)] == [0.22]


def test_values_that_are_not_finite_numbers_have_no_row(tmp_path: Path) -> None:
    metrics = '"name": "t", "alias": " - t", "sample_len": 4, " ": " ", "a,none": NaN, "b,none": "N/A", '
    more = '"c,none": null, "d,none": true, "e,none": Infinity, "acc,none": 1, "acc_stderr,none": NaN'
    scores = read(tmp_path, "t", f'{{"results": {{"t": {{{metrics}{more}}}}}}}')
    assert [(score.metric, score.value, score.stderr) for score in scores] == [("acc", 1.0, None)]


@pytest.mark.parametrize("results", ["{}", '{"gsm8k": {"alias": "gsm8k", "exact_match,none": NaN}}'])
def test_results_without_a_number_are_an_error(tmp_path: Path, results: str) -> None:
    with pytest.raises(RunError, match=r"numeric .*gsm8k"):
        read(tmp_path, "gsm8k", f'{{"results": {results}}}')


def test_results_from_before_lm_eval_0_4_have_metrics_without_filters(tmp_path: Path) -> None:
    text = '{"results": {"arc_easy": {"acc": 0.4, "acc_stderr": 0.01, "acc_norm": 0.5, "acc_norm_stderr": 0.02}}}'
    scores = read(tmp_path, "arc_easy", text)
    assert [(score.metric, score.value, score.stderr) for score in scores] == [
        ("acc", 0.4, 0.01),
        ("acc_norm", 0.5, 0.02),
    ]


def test_a_group_listed_separately_from_its_tasks_has_a_row(tmp_path: Path) -> None:
    text = """{"results": {"mmlu_stem": {"acc,none": 0.4}}, "groups": {"mmlu": {"acc,none": 0.5, "alias": "mmlu"}},
        "n-shot": {"mmlu_stem": 5}, "n-samples": {"mmlu_stem": {"original": 9, "effective": 8}}}"""
    found = [(score.task, score.value, score.num_fewshot, score.samples) for score in read(tmp_path, "mmlu:5", text)]
    assert found == [("mmlu_stem", 0.4, 5, 8), ("mmlu", 0.5, 5, None)]


def test_a_metric_that_is_not_a_share_is_not_shown_as_a_percentage(tmp_path: Path) -> None:
    text = '{"results": {"wikitext": {"word_perplexity,none": 12.5, "acc,none": 0.5}}}'
    table = as_markdown(read(tmp_path, "wikitext", text))
    assert "| word_perplexity | 12.50 |" in table and "| acc | 50.00 |" in table
