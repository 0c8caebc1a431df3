"""What each way to end an episode means for training."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rollyard.records.errors import FailureKind
from rollyard.records.types import FinishReason
from rollyard.training.groups import EndingRules, Treatment

RULES = EndingRules()


@pytest.mark.parametrize(
    ("reason", "treatment"),
    [
        (FinishReason.DONE, Treatment.PLAYED),
        (FinishReason.ANSWERED, Treatment.PLAYED),
        (FinishReason.TRUNCATED, Treatment.PLAYED),
        (FinishReason.MAX_STEPS, Treatment.PLAYED),
        (FinishReason.UNREADABLE_CALL, Treatment.PLAYED),
        (FinishReason.LENGTH, Treatment.MASKED),
        (FinishReason.CONTEXT_OVERFLOW, Treatment.MASKED),
        (FinishReason.CONTENT_FILTER, Treatment.MASKED),
        (None, Treatment.PLAYED),
        ("an_agents_own_reason", Treatment.PLAYED),
    ],
)
def test_the_defaults(reason: str | None, treatment: Treatment) -> None:
    assert RULES.of_row({"finish_reason": reason})[1] is treatment


def test_a_setting_replaces_a_default() -> None:
    rules = EndingRules(finish_reasons={"length": Treatment.PLAYED, "gave_up": Treatment.LEFT_OUT})
    assert rules.of_row({"finish_reason": "length"}) == ("length", Treatment.PLAYED)
    assert rules.of_row({"finish_reason": "gave_up"}) == ("gave_up", Treatment.LEFT_OUT)


def test_rows_that_nemo_gym_masks_are_left_out() -> None:
    assert RULES.of_row({"finish_reason": "done", "mask_sample": True})[1] is Treatment.LEFT_OUT


@pytest.mark.parametrize("kind", FailureKind)
def test_failures_are_left_out_unless_the_policy_was_too_slow(kind: FailureKind) -> None:
    expected = Treatment.ZERO if kind is FailureKind.TIMEOUT else Treatment.LEFT_OUT
    assert RULES.of_failure(kind, "policy_model", ["policy_model"]) is expected
    assert RULES.of_failure(kind, "sokoban", ["policy_model"]) is Treatment.LEFT_OUT


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"finish_reasons": {"lenght": "played"}}, "length"),
        ({"finish_reasons": {"done": "zero"}}, "zero is for"),
        ({"finish_reasons": {"done": "kept"}}, "'played', 'masked', 'zero' or 'left_out'"),
        ({"model_timeout": "played"}, "no tokens"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EndingRules(**settings)
