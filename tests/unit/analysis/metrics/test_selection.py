"""Tests reports on the rollouts that meet an expression."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from rollyard import read_rollouts
from rollyard.analysis.metrics.load import load
from rollyard.analysis.report.formatting import coverage_sentence
from rollyard.records.errors import OperatorError
from tests.support.rollout_files import row, write

ROWS = [
    row(0, 0, 1.0, calls=1, finish_reason="done", scores={"format": 1}),
    row(0, 1, 0.0, calls=4, finish_reason="length", scores={"format": 0}),
    row(1, 0, 0.5, calls=2, finish_reason="done", scores={"format": 1}),
    row(1, 1, None, calls=9, finish_reason="done"),
]
PLAIN = [{key: value for key, value in one.items() if not key.startswith("_ng")} for one in ROWS]
"""Without an index of the task."""


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    return write(tmp_path / "rollouts.jsonl", ROWS)


@pytest.mark.parametrize(
    ("where", "rewards"),
    [
        *(("tool_calls > 1", [0.0, 0.5]), ("scores.format == 1", [1.0, 0.5]), ("task == 1", [0.5])),
        ('end == "done" and scores.format == 1 and reward < 1', [0.5]),
        *(("response.usage.input_tokens >= 200", [0.0, 0.5]), ('end != "done" or task == 1', [0.0, 0.5])),
    ],
)
def test_only_rollouts_that_meet_the_expression_count_in_reports_and_read_rollouts(
    rollouts: Path, where: str, rewards: list[float]
) -> None:
    run = load(rollouts, where=where)
    assert run.columns.reward.tolist() == rewards and run.profile.coverage.measured == len(rewards)
    assert [row["reward"] for row in read_rollouts(rollouts, where=where)] == rewards
    assert len(read_rollouts(rollouts, where=where).to_pandas(["reward"])) == len(rewards)


@pytest.mark.parametrize(
    ("where", "told"),
    [("reward <", "where: reward <: "), ("rewards < 1", "the field rewards"), ("reward > 7", "none of the 3 rollouts")],
)
def test_an_expression_that_selects_nothing_is_refused_with_its_reason(rollouts: Path, where: str, told: str) -> None:
    with pytest.raises(OperatorError, match=told):
        load(rollouts, where=where)
    with pytest.raises(OperatorError, match=r"the field rewards"):
        list(read_rollouts(rollouts, where="rewards != 1"))


@pytest.mark.parametrize(("where", "rewards"), [("task == 2", [0.5]), ("task < 2 and repeat == 0", [1.0, 0.0])])
def test_tasks_of_a_file_without_an_index_are_positions_in_the_file_and_the_report_says_so(
    tmp_path: Path, where: str, rewards: list[float]
) -> None:
    path = write(tmp_path / "plain.jsonl", PLAIN)
    run = load(path, where=where)
    assert run.columns.reward.tolist() == rewards == [row["reward"] for row in read_rollouts(path, where=where)]
    assert any("position" in note for note in run.profile.notes)
    with pytest.raises(OperatorError, match=r" 3 rollouts .*position"):
        load(path, where="task == 70")


def test_a_table_has_any_field_of_the_rows_by_the_names_of_expressions(rollouts: Path) -> None:
    table = read_rollouts(rollouts, where="reward < 1")._columns(["_ng_task_index", "scores.format", "a b"])
    assert table == {"_ng_task_index": [0, 1], "scores.format": [0, 1], "a b": [None, None]}


def test_a_report_on_a_selection_does_not_claim_that_the_manifest_is_missing(rollouts: Path) -> None:
    rollouts.with_name("rollouts_manifest.json").write_bytes(b'{"identity": {"rows": 2, "num_repeats": 2}}')
    assert "according to" in coverage_sentence(load(rollouts).profile.coverage)
    sentence = coverage_sentence(load(rollouts, where="tool_calls > 1").profile.coverage)
    assert "2 rollouts of 2 tasks" in sentence and "selection" in sentence


@pytest.mark.parametrize("noise", ["", "\n".join(map(str, range(200)))])
def test_success_is_what_the_report_counts_where_the_environment_reports_none(tmp_path: Path, noise: str) -> None:
    rows = [row(0, 0, 1.0, noise=noise), row(0, 1, 0.5, noise=noise), row(1, 0, 0.0, noise=noise)]
    path, compressed = write(tmp_path / "x.jsonl", rows), tmp_path / "x.jsonl.gz"
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    assert load(path, where="success").columns.reward.tolist() == [1.0]
    assert load(path, where="success", pass_threshold=0.5).columns.reward.tolist() == [1.0, 0.5]
    for one in (path, compressed):
        assert [found["reward"] for found in read_rollouts(one, where="not success")] == [0.5, 0.0]


@pytest.mark.parametrize("level", ["a", "b"])
def test_what_counts_as_solved_is_decided_from_all_rollouts(tmp_path: Path, level: str) -> None:
    graded = [row(task, 0, float(task * 5 if task > 4 else task % 2), level="ab"[task > 4]) for task in range(10)]
    assert load(write(tmp_path / "graded.jsonl", graded), where=f'level == "{level}"').profile.solved is None
    rows = [row(task, 0, 1.0, level="ab"[task > 4], **({"success": True} if task < 5 else {})) for task in range(10)]
    solved = load(write(tmp_path / "partial.jsonl", rows), where=f'level == "{level}"').profile.solved
    assert solved is not None and "environment" in solved.rule and solved.rate.mean == (level == "a")
