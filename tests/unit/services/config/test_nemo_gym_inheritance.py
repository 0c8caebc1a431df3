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


def test_an_entry_inherits_another_one_which_is_removed() -> None:
    tree = expanded({"base": {"a": 1, "b": {"c": 2}}, "mine": {"_inherit_from": "base", "b": {"d": 3}}})
    assert tree == {"mine": {"a": 1, "b": {"c": 2, "d": 3}}}


def test_a_copied_entry_stays() -> None:
    tree = expanded({"base": {"a": 1}, "mine": {"_copy": "base", "b": 2}})
    assert tree == {"base": {"a": 1}, "mine": {"a": 1, "b": 2}}


def test_a_value_may_be_inherited_by_reference() -> None:
    assert expanded({"base": {"n": 4}, "mine": {"n": "${inherit_from:base.n}"}}) == {"base": {}, "mine": {"n": 4}}
    assert expanded({"base": {"n": 4}, "mine": {"n": "${copy:base.n}"}}) == {"base": {"n": 4}, "mine": {"n": 4}}


def test_inheritance_goes_through_several_levels() -> None:
    tree = {"a": {"x": 1}, "b": {"_inherit_from": "a", "y": 2}, "c": {"_inherit_from": "b", "z": 3}}
    assert expanded(tree) == {"c": {"x": 1, "y": 2, "z": 3}}


def test_inherited_keys_can_be_deleted() -> None:
    tree = {"base": {"a": 1, "b": 2}, "mine": {"_inherit_from": "base", "_delete_key": "a", "c": 3}}
    assert expanded(tree) == {"mine": {"b": 2, "c": 3}}


def test_directives_in_lists_are_applied() -> None:
    assert expanded({"base": {"a": 1}, "many": [{"_copy": "base"}, 5]})["many"] == [{"a": 1}, 5]


def test_ordinary_references_stay_as_they_are() -> None:
    assert expanded({"x": 1, "mine": {"a": "${x}"}, "other": {"_copy": "mine"}})["other"] == {"a": "${x}"}


def test_what_inherits_an_open_value_is_open_itself() -> None:
    tree = expanded({"base": "???", "mine": {"_inherit_from": "base"}})
    assert missing_values(tree) == ["mine"]


def test_open_values_are_listed_with_their_paths() -> None:
    assert missing_values({"a": {"b": "???"}, "c": [1, "???"], "d": "?"}) == ["a.b", "c[1]"]


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
