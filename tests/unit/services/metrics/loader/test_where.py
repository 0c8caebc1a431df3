"""Tests reports on the rollouts that meet an expression."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.services.errors import OperatorError
from rollyard.services.metrics.loader.load_run import load
from tests.support.rollout_files import row, write

ROWS = [
    row(0, 0, 1.0, calls=1, finish_reason="done", scores={"format": 1}),
    row(0, 1, 0.0, calls=4, finish_reason="length", scores={"format": 0}),
    row(1, 0, 0.5, calls=2, finish_reason="done", scores={"format": 1}),
    row(1, 1, None, calls=9, finish_reason="done"),
]


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    return write(tmp_path / "rollouts.jsonl", ROWS)


@pytest.mark.parametrize(
    ("where", "rewards"),
    [
        ("tool_calls > 1", [0.0, 0.5]),
        ("scores.format == 1", [1.0, 0.5]),
        ('end == "done" and scores.format == 1 and reward < 1', [0.5]),
        ("response.usage.input_tokens >= 200", [0.0, 0.5]),
        ("task == 1", [0.5]),
    ],
)
def test_only_rollouts_that_meet_the_expression_count(rollouts: Path, where: str, rewards: list[float]) -> None:
    run = load(rollouts, where=where)
    assert run.columns.reward.tolist() == rewards
    assert run.profile.coverage.measured == len(rewards)


def test_the_report_names_the_expression_and_how_many_rollouts_meet_it(rollouts: Path) -> None:
    assert (
        load(rollouts, where="tool_calls > 1")
        .profile.notes[0]
        .startswith("Only 2 of 3 measured rollouts are counted, those with tool_calls > 1.")
    )


def test_rollouts_that_an_expression_excludes_are_not_missing(rollouts: Path) -> None:
    assert load(rollouts, where="tool_calls > 1").profile.coverage.missing is None


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("reward <", "where: reward <: cannot be read at the end"),
        ("rewards < 1", "no row of .* has the field rewards"),
        ("reward > 7", "none of the 3 rollouts"),
    ],
)
def test_an_expression_that_selects_nothing_is_refused_with_its_reason(rollouts: Path, where: str, told: str) -> None:
    with pytest.raises(OperatorError, match=told):
        load(rollouts, where=where)


def test_a_file_without_a_task_index_can_be_filtered(tmp_path: Path) -> None:
    rows = [{key: value for key, value in one.items() if not key.startswith("_ng")} for one in ROWS]
    assert load(write(tmp_path / "plain.jsonl", rows), where="scores.format == 0").columns.reward.tolist() == [0.0]
