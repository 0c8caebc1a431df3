"""Tokens of a row: both formats, alternatives, and rows that nobody should trust."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rollyard.records.tokens import least_entropy, model_calls
from tests.support.token_rows import alternatives, call_item, logprobs_item, token_row


def test_the_tokens_of_both_formats_are_read_in_order() -> None:
    row = token_row(0, 0, [call_item(["a", "b"], [-1.0, -2.0]), logprobs_item([alternatives("c", 0.25)])])
    calls = list(model_calls(row))
    assert [call.texts for call in calls] == [["a", "b"], ["c"]]
    assert [call.log_probs for call in calls] == [[-1.0, -2.0], [math.log(0.25)]]
    assert [call.count for call in calls] == [2, 1]


def test_tokens_of_the_prompt_and_of_tool_results_are_not_read() -> None:
    item = {**call_item(["a"], [-1.0]), "type": "function_call_output"}
    assert list(model_calls({"response": {"output": [item, {**call_item(["a"], [-1.0]), "role": "user"}]}})) == []


@pytest.mark.parametrize("values", [[-1.0], [-1.0, -2.0, -3.0]])
def test_log_probabilities_that_are_more_or_fewer_than_the_tokens_are_not_assigned_to_them(values: list[float]) -> None:
    item = {**call_item(["a", "b"], [-1.0, -2.0]), "generation_log_probs": values}
    [call] = model_calls(token_row(0, 0, [item]))
    assert call.log_probs == [] and call.texts == ["a", "b"]


@pytest.mark.parametrize("ids", [None, "12", [1, "2"], [True], {"a": 1}])
def test_invalid_ids_are_not_tokens(ids: Any) -> None:
    row = {"response": {"output": [{"type": "message", "role": "assistant", "generation_token_ids": ids}]}}
    assert list(model_calls(row)) == []


def test_the_entropy_of_complete_alternatives_is_exact() -> None:
    quarter = math.log(0.25)
    entry = {"token": "a", "logprob": quarter, "top_logprobs": [{"token": one, "logprob": quarter} for one in "abcd"]}
    assert least_entropy(entry) == pytest.approx(math.log(4))


def test_what_alternatives_leave_counts_as_one_token_so_that_the_entropy_is_a_lower_bound() -> None:
    entry = {"token": "a", "logprob": math.log(0.5), "top_logprobs": [{"token": "b", "logprob": math.log(0.25)}]}
    shares = [0.5, 0.25, 0.25]
    assert least_entropy(entry) == pytest.approx(-sum(share * math.log(share) for share in shares))
    true_entropy = -(0.5 * math.log(0.5) + 0.25 * math.log(0.25) + 25 * 0.01 * math.log(0.01))
    assert least_entropy(entry) < true_entropy  # type: ignore[operator]


def test_without_alternatives_there_is_no_entropy() -> None:
    assert least_entropy({"token": "a", "logprob": -1.0, "top_logprobs": []}) is None
