"""The terms of a rollout: what it did and said, without the prompt."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import rollyard
from rollyard.analysis.clusters.documents import shown_term, terms_of
from rollyard.errors import OperatorError
from rollyard.records.types import Json
from tests.support.failing_rows import recorded
from tests.support.finding_rows import played
from tests.support.rollout_files import write


def shown(row: Json) -> set[str]:
    return {shown_term(term) for term in terms_of(row)}


def has(row: Json, words: str) -> bool:
    """Return whether a term of the row contains these words."""
    return any(words in term for term in shown(row))


def test_words_of_the_prompt_are_omitted() -> None:
    terms = shown(played(0, prompt="How many ducks swim?", says="Ducks swim happily"))
    assert "says “happily”" in terms
    assert not {"says “ducks”", "says “swim”", "says “ducks swim”"} & terms


def test_numbers_are_equal() -> None:
    assert terms_of(played(0, says="it is 12.50 then")) == terms_of(played(0, says="it is 7 then"))


def test_consecutive_actions_are_terms() -> None:
    calls = [("step", '{"to":"Up"}', "a wall"), ("step", '{"to":"Left"}', "a box")]
    assert {"calls step", "calls step to=Up", "calls Up Left"} <= shown(played(0, calls=calls))


def test_a_repeated_call_with_the_same_result_is_a_loop() -> None:
    assert has(played(0, calls=[("look", "{}", "a wall")] * 4), "loop")
    moving = [("step", "{}", f"at {place}") for place in range(4)]
    assert not has(played(0, calls=moving), "loop")


def test_an_error_of_a_tool_is_a_reason_and_a_board_is_not() -> None:
    failed = played(0, calls=[("step", "{}", '{"error":"Invalid direction: north"}')])
    assert has(failed, "reported an error") and has(failed, "invalid direction north")
    board = played(0, calls=[("step", "{}", '{"observation":"####\\n#P_#\\n####","done":false}')])
    assert not has(board, "reported an error")


def test_answers_are_compared_as_numbers() -> None:
    assert has(played(0, expected_answer="1/2", extracted_answer="0.5"), "the expected number")
    assert has(played(0, expected_answer="1/2", extracted_answer="5"), "another number")


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"response": {"output": [None, 7, {"type": "function_call", "arguments": 3}]}, "expected_answer": []},
        {"response": {"output": [{"type": "function_call", "name": "x", "arguments": "[" * 5000}]}},
        {"reward_components": {"a": {"b": 1}}, "_ng_verdict_fields": "no list", "extracted_answer": {"x": 1}},
    ],
)
def test_any_row_has_terms(row: Json) -> None:
    assert isinstance(shown(row), set)


def test_without_scikit_learn_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rollouts.jsonl", recorded(["loop"], tasks=5, repeats=4, solve=0))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(OperatorError, match=r"sklearn.*rollyard\[clusters\]"):
        rollyard.failure_clusters(path)
