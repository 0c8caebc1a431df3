"""Scores of inspect_ai's scorers that are not a number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.resources_servers.inspect_task.app import InspectSettings, verdict_of


def score(value: Any) -> Any:
    return SimpleNamespace(value=value, answer=None, explanation=None)


def test_a_scorer_without_a_score_beside_that_of_the_reward_is_left_out() -> None:
    verdict = verdict_of({"first": score(0.5), "second": None}, InspectSettings(), finished=True)
    assert verdict.reward == 0.5
    assert verdict.model_dump()["scores"] == {"first": {"value": 0.5}}


@pytest.mark.parametrize("found", [None, score(float("nan")), score({"a": float("inf")}), score([])])
def test_an_episode_that_the_scorer_of_the_reward_did_not_score_is_a_failure(found: Any) -> None:
    with pytest.raises(Failure, match="scorer first") as raised:
        verdict_of({"first": found}, InspectSettings(), finished=True)
    assert raised.value.kind is FailureKind.MALFORMED_ANSWER


@pytest.mark.parametrize("value", ["so-so", {"a": 1, "b": "so-so"}, [1, "so-so"]])
def test_a_text_that_is_no_grade_is_a_failure_without_another_attempt(value: Any) -> None:
    with pytest.raises(Failure, match="so-so") as raised:
        verdict_of({"first": score(value)}, InspectSettings(), finished=True)
    assert raised.value.terminal
