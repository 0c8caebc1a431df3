"""A part of docs/evidence/compatibility.md, played again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.external.nemo_gym.compatibility import results, table
from tests.external.nemo_gym.compatibility.__main__ import play
from tests.external.nemo_gym.compatibility.catalog import environments

REPRESENTATIVE = (
    "mcqa",  # one answer
    "equivalence_llm_judge",  # one answer, and a judge
    "example_session_state_mgmt",  # tools, state in a session, invalid arguments
    "example_multi_step",  # tools, several turns
    "example_multi_turn_gymnasium",  # turn-based
    "swe_pivot",  # calls that are not executed
    "grl_sokoban",  # turn-based, a package of its own
    "bird_sql",  # does not start: a download
)


def test_a_representative_part_of_the_table_is_the_same_when_played_again(tmp_path: Path) -> None:
    committed = results.read()
    chosen = [environment for environment in environments() if environment.name in REPRESENTATIVE]
    assert len(chosen) == len(REPRESENTATIVE)
    for result in play(chosen, tmp_path, 2):
        assert result == committed[result.name]


def test_the_table_lists_every_environment_of_the_wheel() -> None:
    assert [(one.name, one.also) for one in results.read().values()] == [(one.name, one.also) for one in environments()]


def test_the_page_shows_the_results() -> None:
    assert table.PAGE.read_text() == table.page(list(results.read().values()))


def test_at_least_140_environments_give_equal_rewards() -> None:
    assert sum(result.equal for result in results.read().values()) >= 140


def test_every_environment_that_is_not_equal_has_a_reason() -> None:
    others = [result for result in results.read().values() if not result.equal]
    assert [result.name for result in others if not result.reason or "unexplained" in result.reason] == []


@pytest.mark.parametrize("name", ["mcqa", "example_multi_step"])
def test_equal_environments_have_different_rewards_where_their_rows_have_gold_answers(name: str) -> None:
    assert results.read()[name].distinct > 1
