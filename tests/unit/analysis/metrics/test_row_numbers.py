"""The numbers of the verdict in rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollyard.analysis.metrics.training_steps import LOG_PROB, RARE_TOKENS, TOKEN_ENTROPY, RowNumbers, joined
from rollyard.records.types import Json
from tests.support.rollout_files import row
from tests.support.token_rows import alternatives, call_item, logprobs_item, token_row


def numbers_of(*rows: Json) -> dict[str, list[float]]:
    found = RowNumbers()
    for place, one in enumerate(rows):
        found.add(one, 100 * place)
    return {name: column.tolist() for name, column in found.columns().values.items()}


def test_nested_numbers_have_dotted_names_and_truth_values_count_as_0_or_1() -> None:
    found = numbers_of(row(0, 0, 1.0, reward_components={"format": 0.5}, details={"graded": True, "why": "text"}))
    assert found == {"reward_components.format": [0.5], "details.graded": [1.0]}


def test_fields_that_have_columns_of_their_own_are_left_out() -> None:
    assert numbers_of(row(0, 0, 1.0, success=True, timings={"total_s": 3.0}, _ng_attempt_index=2)) == {}


def test_rows_without_a_field_have_no_number() -> None:
    found = numbers_of(row(0, 0, 1.0), row(0, 1, 1.0, score=3), row(0, 2, 1.0))
    assert np.isnan(found["score"][0]) and found["score"][1] == 3 and np.isnan(found["score"][2])


def test_the_log_probability_is_the_mean_over_all_generated_tokens() -> None:
    found = numbers_of(token_row(0, 0, [call_item(["a", "b"], [-1.0, -3.0]), call_item(["c"], [-8.0])]))
    assert found[LOG_PROB] == [-4.0]


def test_tokens_below_one_percent_are_a_share_of_the_generated_tokens() -> None:
    assert numbers_of(token_row(0, 0, [call_item(list("abcd"), [-0.1, -5.0, -4.6, -9.0])]))[RARE_TOKENS] == [0.5]


def test_the_entropy_is_the_mean_over_tokens_with_alternatives() -> None:
    calls = [logprobs_item([alternatives("a", 0.5)]), call_item(["b"], [-1.0])]
    assert numbers_of(token_row(0, 0, calls))[TOKEN_ENTROPY] == pytest.approx([math.log(2)])


def test_a_file_with_a_different_field_in_every_row_does_not_fill_the_memory() -> None:
    assert len(numbers_of(*(row(0, place, 1.0, **{f"field_{place}": 1}) for place in range(200)))) == 64


def test_numbers_are_found_by_the_offsets_of_their_rows() -> None:
    parts = []
    for places in ((0, 1), (2, 3)):
        part = RowNumbers()
        for place in places:
            part.add(row(0, place, 1.0, score=place), 100 * place)
        parts.append(part.columns())
    assert joined(parts).at(np.array([300, 0, 200]))["score"].tolist() == [3, 0, 2]
