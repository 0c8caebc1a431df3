"""Tool schemas become methods with the signature, types and docstring that TRL shows to the model."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.training.trl.stack_environments import annotation_of, tool_method

STEP: Json = {
    "type": "function",
    "name": "step",
    "description": "Move.\nThe board follows.",
    "parameters": {
        "type": "object",
        "properties": {"actions": {"type": "array", "items": {"type": "string"}}, "fast": {"type": "boolean"}},
        "required": ["actions"],
    },
}


def echo(_: Any, name: str, arguments: Json) -> str:
    return f"{name} {arguments}"


def test_a_method_has_the_signature_of_the_schema_and_a_docstring_with_one_line_per_argument() -> None:
    method = tool_method(STEP, echo)
    assert method(None, actions=["Up"]) == "step {'actions': ['Up']}"
    parameters = inspect.signature(method).parameters
    assert list(parameters) == ["self", "actions", "fast"]
    assert parameters["actions"].annotation == list[str] and parameters["actions"].default is inspect.Parameter.empty
    assert parameters["fast"].annotation is bool and parameters["fast"].default is None
    lines = str(method.__doc__).splitlines()
    assert lines[0] == "Move. The board follows."
    assert lines[2:5] == ["Args:", "    actions: actions", "    fast: fast"]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, int),
        ({"type": ["string", "null"]}, str | None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, str | int),
        ({"enum": ["a", "b"]}, Literal["a", "b"]),
        ({"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, list[list[float]]),
        ({}, Any),
    ],
)
def test_types_of_json_schemas_become_types_of_python(schema: Json, kind: Any) -> None:
    assert annotation_of(schema) == kind


@pytest.mark.parametrize("name", ["reset", "get_reward", "_hidden", "not a name"])
def test_names_that_trl_reads_otherwise_are_refused(name: str) -> None:
    with pytest.raises(OperatorError, match="rename it"):
        tool_method({**STEP, "name": name}, echo)
