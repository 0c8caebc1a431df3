"""Applies NeMo Gym's directives that build one part of a merged config from another.

- `_inherit_from: a.b` in a mapping, or `${inherit_from:a.b}` as a value, moves the part at `a.b` here. The mapping's
  own keys override it.
- `_copy: a.b` and `${copy:a.b}` do the same, but the source stays where it is.
- `_delete_key: x, y` removes keys, also inherited ones.

They apply to the merged config, after the overrides of the command line, and see the sources as they were before.
"""

from __future__ import annotations

import copy
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.types import Json

_DIRECTIVES = {"_inherit_from": True, "_copy": False}
"""Key of a directive -> whether the source is removed."""
_REFERENCES = {"${inherit_from:": True, "${copy:": False}
_DELETE = "_delete_key"
MISSING = "???"


def expand(tree: DictConfig) -> DictConfig:
    """Return the config with all directives applied. Raises OperatorError if one refers to nothing."""
    plain = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(plain, dict)
    if not _has_directives(plain):
        return tree
    expanded = _Expansion({str(key): value for key, value in plain.items()}).expand()
    created = OmegaConf.create(expanded)
    assert isinstance(created, DictConfig)
    return created


def missing_values(node: Any, path: str = "") -> list[str]:
    """Return the paths of all values that are `???`, which a user has to set."""
    if isinstance(node, dict):
        return [found for key, value in node.items() for found in missing_values(value, f"{path}.{key}".lstrip("."))]
    if isinstance(node, list):
        return [found for index, value in enumerate(node) for found in missing_values(value, f"{path}[{index}]")]
    return [path] if node == MISSING else []


def _has_directives(node: Any) -> bool:
    if isinstance(node, dict):
        return any(key in _DIRECTIVES or key == _DELETE for key in node) or any(map(_has_directives, node.values()))
    if isinstance(node, list):
        return any(map(_has_directives, node))
    return isinstance(node, str) and node.startswith(tuple(_REFERENCES))


class _Expansion:
    def __init__(self, tree: Json) -> None:
        self._tree = tree
        self._before = copy.deepcopy(tree)
        self._moved: list[list[str]] = []

    def expand(self) -> Json:
        expanded: Json = self._expand(self._tree, "", ())
        for path in self._moved:
            self._remove(expanded, path)
        return expanded

    def _expand(self, node: Any, where: str, open_paths: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [self._expand(item, f"{where}[{index}]", open_paths) for index, item in enumerate(node)]
        if isinstance(node, str):
            return self._expand_reference(node, where, open_paths)
        if not isinstance(node, dict):
            return node
        deleted = [name.strip() for name in str(node.get(_DELETE) or "").split(",") if name.strip()]
        own = {key: value for key, value in node.items() if key not in _DIRECTIVES and key != _DELETE}
        own_keys = {key: value for key, value in own.items() if key not in deleted}
        for key, moves in _DIRECTIVES.items():
            if key in node:
                source = self._source(str(node[key]), where, open_paths, moves=moves)
                own_keys = _merged(source, own_keys) if isinstance(source, dict) else own_keys
                if source == MISSING:
                    return MISSING
        if absent := [name for name in deleted if name not in own_keys and name not in own]:
            raise OperatorError(f"{where} deletes {absent[0]!r} with {_DELETE}, but has no such key")
        return {
            key: self._expand(value, f"{where}.{key}".lstrip("."), open_paths)
            for key, value in own_keys.items()
            if key not in deleted
        }

    def _expand_reference(self, text: str, where: str, open_paths: tuple[str, ...]) -> Any:
        for prefix, moves in _REFERENCES.items():
            if text.startswith(prefix) and text.endswith("}"):
                return self._source(text[len(prefix) : -1], where, open_paths, moves=moves)
        return text

    def _source(self, path: str, where: str, open_paths: tuple[str, ...], *, moves: bool) -> Any:
        """Return the expanded part at `path`; `???` if that part has yet to be set."""
        if path in open_paths:
            raise OperatorError(f"{where} inherits from itself, through {' -> '.join((*open_paths, path))}")
        node: Any = self._before
        for name in path.split("."):
            if node == MISSING:
                return MISSING
            if not isinstance(node, dict) or name not in node:
                hint = did_you_mean(name, map(str, node)) if isinstance(node, dict) else ""
                raise OperatorError(f"{where} inherits from {path!r}, which the configs do not contain{hint}")
            node = node[name]
        if moves:
            self._moved.append(path.split("."))
        return self._expand(copy.deepcopy(node), where, (*open_paths, path))

    @staticmethod
    def _remove(tree: Json, path: list[str]) -> None:
        node: Any = tree
        for name in path[:-1]:
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(path[-1], None)


def _merged(base: Json, over: Json) -> Json:
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else value
    return result
