"""Fields that are computed from a row's recorded tokens: log-probabilities and versions of the policy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rollyard.analysis.metrics.load import load
from rollyard.records.errors import OperatorError
from rollyard.records.tokens import mean_log_prob, min_log_prob, policy_versions
from tests.support.rollout_files import MESSAGE, row, write


def played(*calls: dict[str, Any]) -> dict[str, Any]:
    """A rollout whose model calls have these fields."""
    return {"response": {"output": [{**MESSAGE, **call} for call in calls]}}


def test_the_mean_is_over_all_tokens_of_the_episode_and_not_over_calls() -> None:
    found = played({"generation_log_probs": [-1.0, -2.0, -3.0]}, {}, {"generation_log_probs": [-6.0]})
    assert (mean_log_prob(found), min_log_prob(found)) == (-3.0, -6.0)


@pytest.mark.parametrize("values", [[-1.0, None], [-1.0, "x"], [-1.0, True], [-1.0, math.nan], [-1, math.inf]])
def test_a_call_counts_as_not_recorded_if_one_of_its_values_is_invalid(values: list[Any]) -> None:
    found = played({"generation_log_probs": values}, {"generation_log_probs": [-2.0]})
    assert (mean_log_prob(found), min_log_prob(found)) == (-2.0, -2.0)


@pytest.mark.parametrize("found", [{}, played({}), played({"generation_log_probs": []}), {"response": {"output": [1]}}])
def test_a_row_without_recorded_tokens_has_no_value(found: dict[str, Any]) -> None:
    assert (mean_log_prob(found), min_log_prob(found), policy_versions(found)) == (None, None, None)


def test_policy_versions_are_those_of_all_turns_and_tokens_in_order_each_once() -> None:
    spans = [{"version": "8", "start": 0, "end": 4}, {"version": "9", "start": 4, "end": 6}]
    calls: list[dict[str, Any]] = [
        {"token_trace": {"sampling": {"policy_version": "7"}}},
        {"token_trace": {"sampling": {"policy_version": "8", "weight_versions": spans, "policy_version_end": "9"}}},
        {"token_trace": {"sampling": {"policy_version": "9"}}},
    ]
    assert policy_versions(played(*calls)) == ["7", "8", "9"]


def test_a_report_selects_rollouts_by_derived_fields(tmp_path: Path) -> None:
    rows = []
    for repeat in range(3):
        made = row(0, repeat, float(repeat))
        trace = {"sampling": {"policy_version": str(repeat)}}
        made["response"]["output"] = [{**MESSAGE, "generation_log_probs": [-0.5 * repeat], "token_trace": trace}]
        rows.append(made)
    path = write(tmp_path / "x.jsonl", rows)
    where = 'mean_log_prob < -0.2 and min_log_prob > -0.7 and "1" in policy_versions'
    assert load(path, where=where).columns.reward.tolist() == [1.0]


def test_a_report_on_a_derived_field_of_a_file_without_tokens_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="recorded tokens"):
        load(write(tmp_path / "x.jsonl", [row(0, 0, 1.0)]), where="mean_log_prob < 0")


def test_a_key_of_the_row_with_the_name_of_a_derived_field_is_named_with_row(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 1.0, min_log_prob=3), row(0, 1, 0.0, min_log_prob=4)])
    assert load(path, where="row.min_log_prob == 4").columns.reward.tolist() == [0.0]
