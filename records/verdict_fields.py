"""Which fields of a rollout row explain its reward: the gold answer, the answer that was found, the reason, the tests.

An environment declares them (`Environment.verdict_fields`), and its rows contain the declaration as
`_ng_verdict_fields`. In rows without one, such as those of other stacks, common names are recognised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

from pydantic import ConfigDict, Field, ValidationError

from rollyard.records.types import Json, Record

VERDICT_FIELDS = "_ng_verdict_fields"
MAX_FIELDS = 32
Role = Literal["expected", "extracted", "outcome", "reason", "tests", "component", "limit"]
ROLES: tuple[Role, ...] = get_args(Role)


class VerdictField(Record):
    """A field of the row that explains the reward, such as `VerdictField(path="reason", role="reason")`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: str = Field(max_length=200, pattern=r"^[^\W\d]\w*(\.\w+)*$")
    """The field's name in the row; `scores.format` is a key of an object."""
    role: Role
    """`expected`: the gold answer. `extracted`: the answer that was found. `outcome`: what came of a game or another
    episode without an answer, such as its moves, or the best that could have come; shown under its label alone.
    `reason`: why the verdict is what it is. `tests`: how many checks passed, or which. `component`: a part of the
    reward, or an object of parts by name. `limit`: whether a limit of the environment was hit, or which."""
    label: str = Field(default="", max_length=60)
    """The field's name in the viewer; default: the last name of the path, with spaces."""
    exact: bool = True
    """Only for `expected`: whether the extracted answer of a solved task equals it. False for anything else that was
    asked for, such as instructions."""

    @property
    def shown_label(self) -> str:
        return self.label or self.path.rpartition(".")[2].replace("_", " ").strip() or self.path

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.path.split("."))

    def is_in(self, row: Mapping[str, Any]) -> bool:
        """Return whether the row has the field, possibly with the value None."""
        *outer, last = self.keys
        found: Any = row
        for key in outer:
            found = found.get(key) if isinstance(found, Mapping) else None
        return isinstance(found, Mapping) and last in found

    def value(self, row: Mapping[str, Any]) -> Any:
        """Return the value in a row; None if there is none."""
        if "." not in self.path:  # most fields; a list of rollouts looks up dozens of names in each row
            return row.get(self.path)
        found: Any = row
        for key in self.keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


def _known(role: Role, *paths: str) -> tuple[VerdictField, ...]:
    return tuple(VerdictField(path=path, role=role) for path in paths)


_FIRST_OF: tuple[tuple[VerdictField, ...], ...] = (
    _known(
        "expected",
        *("expected_answer", "gold_answer", "gold", "ground_truth", "reference_answer", "target"),
        *("correct_answer", "verifier_metadata.expected_answer"),
        *("verifier_metadata.ground_truth", "verifier_metadata.answer", "answer"),
    ),
    _known(
        "extracted",
        *("extracted_answer", "predicted_answer", "model_answer", "parsed_answer", "prediction"),
        *("extracted_code", "extracted_model_code"),
    ),
    _known("reason", "reason", "explanation", "rationale", "error_message"),
    _known("tests", "tests_passed", "num_passed", "passed_tests", "follow_instruction_list", "unit_tests_passed"),
    _known("tests", "num_tests", "total_tests", "unit_tests_total"),
    _known("component", "reward_components", "scores", "rewards"),
)
"""Common names, the usual ones first. Of each group, the first name that a row contains counts."""
_EACH = (
    *_known("outcome", "moves", "optimal_moves", "boxes_on_target"),
    *_known("component", "library_reward", "judge_score", "format_reward", "shaping_reward", "penalty"),
    *_known("limit", "truncated", "timed_out", "scoring_timed_out", "openenv_timed_out", "gym_truncated", "ending"),
)
"""Common names that all count."""


def fields_of(row: Mapping[str, Any], roles: Collection[Role] = ROLES) -> tuple[VerdictField, ...]:
    """Return the fields with these roles that the row declares, or else those with common names, in the order of their
    roles. Common names are looked for only if the row declares nothing at all.
    """
    declared = _declared(row.get(VERDICT_FIELDS))
    return tuple(field for field in declared if field.role in roles) if declared else recognised_fields(row, roles)


def recognised_fields(row: Mapping[str, Any], roles: Collection[Role] = ROLES) -> tuple[VerdictField, ...]:
    """Return the fields with common names that the row contains, in the order of their roles."""
    found = [
        next((field for field in group if field.value(row) is not None), None)
        or next((field for field in group if field.path in row), None)
        for group in _FIRST_OF
        if group[0].role in roles
    ]
    each = (field for field in _EACH if field.role in roles and field.value(row) is not None)
    chosen = [*filter(None, found), *each]
    if "tests" in roles and "tests_passed" in row and isinstance(row.get("tests"), int):  # often a list of code
        chosen.append(VerdictField(path="tests", role="tests"))
    return tuple(sorted(chosen, key=lambda field: ROLES.index(field.role)))


def declaration(fields: tuple[VerdictField, ...]) -> Json:
    """Return what a row contains of the fields; empty if there are none."""
    return {VERDICT_FIELDS: [field.model_dump(exclude_defaults=True) for field in fields]} if fields else {}


def _declared(value: object) -> tuple[VerdictField, ...]:
    """Return the valid fields of a declaration. Others are ignored: the row may come from another program."""
    found: list[VerdictField] = []
    for each in value[:MAX_FIELDS] if isinstance(value, list) else ():
        try:
            found.append(VerdictField.model_validate(each))
        except ValidationError:
            continue
    return tuple(sorted(found, key=lambda field: ROLES.index(field.role)))
