"""Dotted keys such as `generation.temperature`: their syntax, and setting them in nested mappings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.launchers.slurm.launch.yaml_values import read_value
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.overrides import shown

_KEY = re.compile(r"[A-Za-z_][\w\-]*(?:\.[\w\-]+)*", re.ASCII)


@dataclass(frozen=True)
class Setting:
    """A value for a dotted key."""

    key: str
    value: Any
    adds: bool = False
    """Written as `+key`: the key need not exist."""


def setting(key: str, value: Any, origin: str) -> Setting:
    """Return the setting of `key`, which may start with `+`; OperatorError if it is invalid. Messages name `origin`."""
    name = key.lstrip("+")
    if len(key) - len(name) > 2 or not _KEY.fullmatch(name):
        raise OperatorError(f"{origin}: {key!r} is not a key; expected names and dots, such as generation.temperature")
    return Setting(name, value, adds=key != name)


def read_overrides(words: Sequence[str]) -> list[Setting]:
    """Parse `key=value` words. Raises OperatorError for anything else."""
    return [_read(word) for word in words]


def _read(word: str) -> Setting:
    key, equals, text = word.partition("=")
    if not equals:
        raise OperatorError(
            f"{word!r} is neither a flag nor an override; expected key=value, such as generation.temperature=0.6"
        )
    try:
        value = read_value(text)
    except ValueError as error:
        quoted = f"{key}=\"'...'\""
        raise OperatorError(f"{shown(word)!r}: {error}. For a string, add quotes: {quoted}") from error
    return setting(key, value, "command line")


def find_value(tree: Json, key: str) -> Any:
    """Return the value at a dotted key; None if it does not exist."""
    node: Any = tree
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def has_key(tree: Json, key: str) -> bool:
    *path, last = key.split(".")
    node = find_value(tree, ".".join(path)) if path else tree
    return isinstance(node, dict) and last in node


def set_value(tree: Json, key: str, value: Any, origin: str) -> None:
    """Set the value at a dotted key, in place. Missing and null sections become mappings, and mappings are merged.

    Raises OperatorError, with `origin`, if a section is a list or a single value.
    """
    *path, last = key.split(".")
    node = tree
    for number, part in enumerate(path, 1):
        if node.get(part) is None:
            node[part] = {}
        if not isinstance(node[part], dict):
            section = ".".join(path[:number])
            kind = "a list" if isinstance(node[part], list) else f"the value {node[part]!r}"
            raise OperatorError(f"{origin}: {key} cannot be set, because {section} is {kind}; set {section} as a whole")
        node = node[part]
    node[last] = _merged(node.get(last), value)


def _merged(before: Any, value: Any) -> Any:
    """Return a value as it replaces another one: mappings are merged, as in Hydra."""
    if not (isinstance(before, dict) and isinstance(value, dict)):
        return value
    return {**before, **{key: _merged(before.get(key), one) for key, one in value.items()}}
