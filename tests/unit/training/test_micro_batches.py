"""Micro-batches by token budget."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.training.micro_batches import micro_batches


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
