"""The fields that explain a reward: declared by an environment, or recognised by their names."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from rollyard.errors import OperatorError
from rollyard.records.rewards import VERDICT_FIELDS, VerdictField, declaration, fields_of
from rollyard.resources_servers.environment import Environment, check_environment


def found(row: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(field.role, field.path) for field in fields_of(row)]


def test_the_declaration_of_a_row_takes_precedence_over_common_names() -> None:
    fields = (VerdictField(path="why", role="reason", label="judge"), VerdictField(path="best.move", role="expected"))
    row = {"expected_answer": "1", "why": "late", "best": {"move": 3}, **declaration(fields)}
    assert found(row) == [("expected", "best.move"), ("reason", "why")]
    assert [field.shown_label for field in fields_of(row)] == ["move", "judge"]
    assert fields_of(row)[0].value(row) == 3


def test_common_names_are_recognised_in_rows_without_a_declaration() -> None:
    row = {"reward": 0.0, "expected_answer": "18", "answer": "... #### 18", "extracted_answer": None, "reason": "none"}
    assert found(row) == [("expected", "expected_answer"), ("extracted", "extracted_answer"), ("reason", "reason")]


def test_the_moves_of_a_game_are_no_answers() -> None:
    facts = {"moves": 20, "optimal_moves": 4, "boxes_on_target": 1}
    outcomes = [("outcome", name) for name in facts]
    assert found({**facts, "extracted_answer": None}) == [("extracted", "extracted_answer"), *outcomes]


def test_a_list_of_test_code_is_not_a_number_of_tests() -> None:
    assert found({"tests": ["assert f() == 1"], "tests_passed": 1}) == [("tests", "tests_passed")]
    assert ("tests", "tests") in found({"tests": 3, "tests_passed": 1})


@pytest.mark.parametrize("declared", [7, "x", [None, {"path": "a b", "role": "reason"}, {"role": "tests"}]])
def test_invalid_declarations_of_other_programs_are_ignored(declared: object) -> None:
    assert found({VERDICT_FIELDS: declared, "reason": "r"}) == [("reason", "reason")]


def test_a_path_with_spaces_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ValidationError):
        VerdictField(path="two words", role="reason")


def test_an_environment_with_other_values_in_verdict_fields_is_refused_with_an_example() -> None:
    wrong = type("Wrong", (Environment,), {"verdict_fields": ("reason",)})
    with pytest.raises(OperatorError, match=r"verdict_fields.* tuple "):
        check_environment(wrong)
