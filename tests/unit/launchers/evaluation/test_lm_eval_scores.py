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


def read(path: Path, benchmark: str, text: str) -> list[BenchmarkScore]:
    (path / "results_1.json").write_text(text)
    return read_scores(path / "results_1.json", Benchmark.read(benchmark), "step_40", 40, QWEN3_1_7B_BASE)


def scores(path: Path, benchmark: str, **results: Any) -> list[BenchmarkScore]:
    samples = {name: {"effective": 5} for name in results}
    return read(path, benchmark, orjson.dumps({"results": results, "n-samples": samples}).decode())


def test_each_filter_of_a_metric_is_compared_with_its_own_baseline(tmp_path: Path) -> None:
    strict, flexible = scores(tmp_path, "gsm8k:8", gsm8k=GSM8K)
    assert (strict.metric, strict.value, strict.stderr, strict.samples) == ("exact_match/strict-match", 0.7, 0.01, 5)
    assert (flexible.metric, flexible.stderr) == ("exact_match/flexible-extract", None)
    assert strict.difference == pytest.approx(0.7 - 0.6892)
    assert flexible.difference == pytest.approx(0.75 - 0.696)


def test_the_csv_and_markdown_tables_agree(tmp_path: Path) -> None:
    found = scores(tmp_path, "gsm8k:8", gsm8k=GSM8K)
    rows = [list(row.values())[:6] for row in csv.DictReader(io.StringIO(as_csv(found)))]
    assert rows[0] == ["40", "step_40", "gsm8k", "8", "exact_match/strict-match", "0.7"] and len(rows) == 2
    line = "| 40 | step_40 | gsm8k | 8 | exact_match/strict-match | 70.00 ± 1.00 | 68.92 | +1.08 |"
    assert line in as_markdown(found)


MMLU = """{"results": {"mmlu_stem": {"acc,none": 0.4}}, "groups": {"mmlu": {"acc,none": 0.5, "alias": "mmlu"}},
    "n-shot": {"mmlu_stem": 5}, "n-samples": {"mmlu_stem": {"original": 9, "effective": 8}}}"""
OLD = '{"results": {"arc_easy": {"acc": 0.4, "acc_stderr": 0.01, "acc_norm": 0.5, "acc_norm_stderr": 0.02}}}'
NOT_FINITE = """{"results": {"t": {"name": "t", "alias": " - t", "sample_len": 4, " ": " ", "a,none": NaN,
    "b,none": "N/A", "c,none": null, "d,none": true, "e,none": Infinity, "acc,none": 1, "acc_stderr,none": NaN}}}"""
SUBTASKS = """{"results": {"hendrycks_math": {"exact_match,none": 0.2, "alias": "hendrycks_math"},
    "hendrycks_math_algebra": {"exact_match,none": 0.3, "alias": " - algebra"}}}"""


@pytest.mark.parametrize(
    ("benchmark", "text", "columns", "expected"),
    [
        ("humaneval:0", '{"results": {"humaneval": {"pass@1,create_test": 0.5}}}', "metric baseline", "pass@1 0.4878"),
        ("mbpp:3", '{"results": {"mbpp": {"pass_at_1,none": 0.5}}}', "metric baseline", "pass@1 0.558"),
        ("gsm8k:5", '{"results": {"gsm8k": {"exact_match,strict-match": 0.5}}}', "baseline", "None"),
        ("hendrycks_math:4", SUBTASKS, "task value", "hendrycks_math 0.2, hendrycks_math_algebra 0.3"),
        ("hendrycks_math:4", SUBTASKS, "baseline", "0.1768, None"),
        # The number of examples that lm_eval reports:
        ("mbpp", '{"results": {"mbpp": {"pass_at_1,none": 0.6}}, "n-shot": {"mbpp": 3}}', "baseline", "0.558"),
        (
            *("ifeval:5", '{"results": {"ifeval": {"prompt_level_strict_acc,none": 0.3}}, "n-shot": {"ifeval": 0}}'),
            *("num_fewshot baseline", "0 0.22"),
        ),
        ("t", NOT_FINITE, "metric value stderr", "acc 1.0 None"),
        ("arc_easy", OLD, "metric value stderr", "acc 0.4 0.01, acc_norm 0.5 0.02"),
        ("mmlu:5", MMLU, "task value num_fewshot samples", "mmlu_stem 0.4 5 8, mmlu 0.5 5 None"),
    ],
    ids=lambda value: value if isinstance(value, str) and "{" not in value else "",
)
def test_each_metric_of_a_results_file_is_a_row(
    tmp_path: Path, benchmark: str, text: str, columns: str, expected: str
) -> None:
    found = read(tmp_path, benchmark, text)
    shown = [" ".join(str(getattr(score, name)) for name in columns.split()) for score in found]
    assert ", ".join(shown) == expected


@pytest.mark.parametrize(("value", "text"), [(0.0, "0.00 (at most 0.23)"), (1.0, "100.00 (at least 99.77)")])
def test_a_score_of_0_or_100_percent_shows_a_bound_instead_of_an_error(value: float, text: str) -> None:
    score = BenchmarkScore(
        step=1, checkpoint="c", task="gsm8k", num_fewshot=8, metric="exact_match", value=value, stderr=0.0, samples=1319
    )
    assert f"| {text} |" in as_markdown([score])


def test_a_metric_that_is_not_a_share_is_not_shown_as_a_percentage(tmp_path: Path) -> None:
    table = as_markdown(scores(tmp_path, "wikitext", wikitext={"word_perplexity,none": 12.5, "acc,none": 0.5}))
    assert "| word_perplexity | 12.50 |" in table and "| acc | 50.00 |" in table


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"results": {"gsm8k"', r"results_1\.json"),
        ('{"results": {}}', "numeric .*gsm8k"),
        ('{"results": {"gsm8k": {"alias": "gsm8k", "exact_match,none": NaN}}}', "numeric .*gsm8k"),
    ],
)
def test_a_truncated_results_file_or_one_without_a_number_is_an_error(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(RunError, match=named):
        read(tmp_path, "gsm8k", text)
