"""The age of a rollout is that of the weights that sampled its tokens."""

from __future__ import annotations

import pytest

from rollyard.records.errors import RunError
from rollyard.training.step_files import policy_age
from rollyard.training.training_sequence import TrainingSequence


def sequence(*versions: str | None, mask: list[int] | None = None) -> TrainingSequence:
    count = len(versions)
    return TrainingSequence([1], [2] * count, mask or [1] * count, [0.0] * count, [0] * count, list(versions), 1.0)


def test_the_oldest_and_the_newest_weights_are_those_of_all_tokens() -> None:
    sequences = [sequence("step_000004", "step_000003"), sequence("step_000005-r2")]
    assert policy_age(sequences) == (3, 5)


def test_tokens_without_a_loss_have_no_age() -> None:
    assert policy_age([sequence(None, "step_000002", mask=[0, 1])]) == (2, 2)
    assert policy_age([sequence(None, mask=[0])]) is None


def test_unknown_weights_are_an_error_and_not_version_0() -> None:
    with pytest.raises(RunError, match="unknown"):
        policy_age([sequence("step_000002", None)])
