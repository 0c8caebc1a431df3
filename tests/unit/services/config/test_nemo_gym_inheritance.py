from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.nemo_gym import expand, missing_values


def expanded(tree: Json) -> Json:
    result = OmegaConf.to_container(expand(OmegaConf.create(tree)), resolve=False)
    assert isinstance(result, dict)
    return {str(key): value for key, value in result.items()}


@pytest.mark.parametrize(
    ("tree", "result"),
    [
        (
            {"base": {"a": 1, "b": {"c": 2}}, "mine": {"_inherit_from": "base", "b": {"d": 3}}},
            {"mine": {"a": 1, "b": {"c": 2, "d": 3}}},
        ),
        ({"base": {"a": 1}, "mine": {"_copy": "base", "b": 2}}, {"base": {"a": 1}, "mine": {"a": 1, "b": 2}}),
        ({"base": {"n": 4}, "mine": {"n": "${inherit_from:base.n}"}}, {"base": {}, "mine": {"n": 4}}),
        ({"base": {"n": 4}, "mine": {"n": "${copy:base.n}"}}, {"base": {"n": 4}, "mine": {"n": 4}}),
        (
            {"a": {"x": 1}, "b": {"_inherit_from": "a", "y": 2}, "c": {"_inherit_from": "b", "z": 3}},
            {"c": {"x": 1, "y": 2, "z": 3}},
        ),
        (
            {"base": {"a": 1, "b": 2}, "mine": {"_inherit_from": "base", "_delete_key": "a", "c": 3}},
            {"mine": {"b": 2, "c": 3}},
        ),
        ({"base": {"a": "${x}"}, "many": [{"_copy": "base"}, 5]}, {"base": {"a": "${x}"}, "many": [{"a": "${x}"}, 5]}),
    ],
)
def test_directives_build_one_entry_from_another(tree: Json, result: Json) -> None:
    assert expanded(tree) == result


def test_open_values_are_listed_with_their_paths_even_if_inherited() -> None:
    assert missing_values({"a": {"b": "???"}, "c": [1, "???"], "d": "?"}) == ["a.b", "c[1]"]
    assert missing_values(expanded({"base": "???", "mine": {"_inherit_from": "base"}})) == ["mine"]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"base": {}, "mine": {"_inherit_from": "bese"}}, "mine .*'bese'.*'base'"),
        ({"a": {"_copy": "b"}, "b": {"_copy": "a"}}, "inherits from itself"),
        ({"mine": {"_delete_key": "absent", "a": 1}}, "mine deletes 'absent'"),
    ],
)
def test_a_directive_that_cannot_be_applied_is_refused(tree: Json, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        expanded(tree)
