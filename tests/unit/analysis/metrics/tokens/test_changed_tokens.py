"""Tokens that became more or less frequent are found, and chance is not."""

from __future__ import annotations

import math

import pytest

from rollyard.analysis.metrics.tokens.changed_tokens import MIN_ROLLOUTS, PRIOR, changed_tokens
from rollyard.analysis.metrics.tokens.row_tally import RowTally
from rollyard.analysis.metrics.tokens.token_tally import TokenTally
from rollyard.records.types import Json
from tests.support.token_rows import call_item, random_token_rows, token_row


def tally_of(rows: list[Json]) -> TokenTally:
    tally = RowTally()
    for offset, row in enumerate(rows):
        tally.add(row, offset)
    return tally.result()


def rows_with(texts: list[str], rollouts: int) -> list[Json]:
    return [token_row(task, 0, [call_item(texts, [-1.0] * len(texts))]) for task in range(rollouts)]


def test_a_token_that_became_frequent_comes_first() -> None:
    found = changed_tokens(tally_of(random_token_rows(10, 4)), tally_of(random_token_rows(10, 4, seed=1, drift=0.2)))
    assert found.keys[found.most(more=True, limit=5)[0]] == " because"


def test_the_log_odds_are_those_of_the_paper() -> None:
    first, second = rows_with(["a", "b", "b", "b"], 4), rows_with(["a", "a", "b", "b"], 4)
    found = changed_tokens(tally_of(first), tally_of(second))
    at = found.keys.index("a")
    prior = PRIOR * 12 / 32  # 4 of 16 and 8 of 16
    odds = [(count + prior) / (16 + PRIOR - count - prior) for count in (4, 8)]
    expected = math.log(odds[1]) - math.log(odds[0])
    assert found.log_odds[at] == pytest.approx(expected)
    assert found.z[at] == pytest.approx(expected / math.sqrt(1 / (4 + prior) + 1 / (8 + prior)))


def test_exchanging_the_runs_changes_the_sign() -> None:
    first, second = tally_of(random_token_rows(5, 2)), tally_of(random_token_rows(5, 2, seed=1))
    one, other = changed_tokens(first, second), changed_tokens(second, first)
    assert dict(zip(one.keys, one.z, strict=True)) == pytest.approx(dict(zip(other.keys, -other.z, strict=True)))


def test_a_token_of_a_few_rollouts_is_not_listed_however_often_they_repeat_it() -> None:
    same = rows_with(["a", "b"], 20)
    odd = [token_row(100 + task, 0, [call_item(["odd"] * 50, [-1.0] * 50)]) for task in range(MIN_ROLLOUTS - 1)]
    found = changed_tokens(tally_of(same), tally_of([*same, *odd]))
    assert "odd" in found.keys and "odd" not in [found.keys[at] for at in found.most(more=True, limit=10)]


def test_runs_without_tokens_have_no_changes() -> None:
    found = changed_tokens(tally_of([]), tally_of([]))
    assert found.keys == [] and found.most(more=True, limit=10) == []
