"""What has a loss in an update, and its micro-batches by token budget."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.errors import RunError
from rollyard.training.update import micro_batches, update_of
from tests.unit.training.batches import batch, played
from tests.unit.training.recorded_turns import turn


def test_a_sequence_that_is_too_long_is_counted_and_has_no_loss() -> None:
    groups = batch(played(1.0, turn([1], [2] * 30)), played(0.0, turn([1], [2] * 10))).groups
    update = update_of(groups, max_seq_len=30, temperature=1.0)
    assert (update.too_long, [sequence.length for sequence in update.sequences]) == (1, [11])


def test_another_sampling_temperature_stops_the_training() -> None:
    with pytest.raises(RunError, match=r"temperature 1, .* 0\.7"):
        update_of(batch(played(1.0), played(0.0)).groups, max_seq_len=99, temperature=0.7)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 50)), st.integers(50, 200))
def test_every_sequence_is_in_one_micro_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = micro_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[index] for index in batch) <= budget for batch in batches)


def test_sequences_of_similar_length_share_a_micro_batch() -> None:
    assert micro_batches([10, 2, 9, 2, 2], 20) == [[0, 2], [1, 3, 4]]


def test_a_sequence_above_the_budget_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\b11 tokens.*\b10 tokens"):
        micro_batches([3, 11], 10)
