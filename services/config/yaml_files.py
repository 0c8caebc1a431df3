"""Finds and reads the YAML files of a run, and explains errors in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)
from yaml import MarkedYAMLError, YAMLError

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.io.search_path import find_file
from rollyard.records.io.yaml_aliases import check_aliases
from rollyard.services.config.nemo_gym.folders import with_roots_of
from rollyard.services.config.server_folders import ALIASES, FAMILIES

_MAX_EXPANDED = 10_000_000
_REFERENCE = re.compile(r"\$\{\s*([^${}:\s]+)\s*\}")
"""A reference to a value of the config, not to a resolver such as `oc.env:NAME`."""
_Place = tuple[str, ...]


def config_files(
    config_paths: Sequence[str | Mapping[str, Any]], roots: Sequence[Path]
) -> list[Path | Mapping[str, Any]]:
    """Return the files of `config_paths`, and after them those that they list under `config_paths` themselves.

    Each file is listed once. A relative path in a file may also refer to the root of the folders that it comes from.
    """
    found: list[Path | Mapping[str, Any]] = []
    waiting: list[tuple[str | Mapping[str, Any], Sequence[Path]]] = [(path, roots) for path in config_paths]
    for path, searched in waiting:  # grows while it is read
        file = find_config(path, searched) if isinstance(path, str) else path
        if file in found:
            continue
        found.append(file)
        listed = (read_yaml(file) if isinstance(file, Path) else file).get("config_paths")
        for more in [listed] if isinstance(listed, str) else listed or ():
            if not isinstance(more, str):
                raise OperatorError(f"config_paths in {path} contains {more!r}; expected file names")
            waiting.append((more, with_roots_of([file], searched) if isinstance(file, Path) else searched))
    return found


def find_config(path: str, roots: Sequence[Path]) -> Path:
    """Return the config file `path` from the first root that contains it. Raises OperatorError if none does."""
    if found := find_file(path, roots):
        return found
    if any((root / path).is_dir() for root in roots):
        raise OperatorError(f"{path!r} is a folder; expected a config file in it, such as configs/sokoban_builtin.yaml")
    known = [str(found.relative_to(root)) for root in roots for found in _known_configs(root)]
    same = [one for one in known if Path(one).name == Path(path).name]  # in another family
    searched = ", ".join(str(root) for root in roots)
    raise OperatorError(f"config file {path!r} not found{did_you_mean(path, same or known)} (looked in {searched})")


def _known_configs(root: Path) -> Iterator[Path]:
    yield from (root / "configs").glob("*.yaml")
    for family in (*FAMILIES, *ALIASES):
        yield from (root / family).glob("*/configs/*.yaml")


def read_yaml(path: Path) -> DictConfig:
    """Read a YAML file. Raises OperatorError if it does not contain a mapping."""
    try:
        check_aliases(path.read_text(encoding="utf-8"))
        loaded = OmegaConf.load(path)
    except OmegaConfBaseException as error:
        raise OperatorError(f"{path}: {describe_error(error)}") from error
    except RecursionError as error:
        raise OperatorError(f"{path} refers to itself, or is nested too deeply") from error
    except (OSError, ValueError, YAMLError) as error:
        raise OperatorError(f"{path} cannot be read as YAML: {_describe_yaml_error(error)}") from error
    if isinstance(loaded, ListConfig):
        raise OperatorError(f"{path} contains a list; expected a mapping of server names to settings")
    return loaded


def resolved(tree: DictConfig) -> Any:
    """Return the tree with every reference `${name}` replaced. Raises OmegaConf's errors, and those of
    `check_expansion`.
    """
    check_expansion(tree)
    return OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)


def check_expansion(tree: DictConfig) -> None:
    """Raise OperatorError if the references of the tree expand to far more than the files contain.

    Call it before any other use of the tree: OmegaConf resolves a reference even to tell whether its key exists.
    """
    plain = OmegaConf.to_container(tree, resolve=False)
    try:
        size = _Expanded(plain).size((), plain)
    except RecursionError as error:
        raise OperatorError("the config refers to itself, or is nested too deeply") from error
    if size > _MAX_EXPANDED:
        raise OperatorError(
            f"the references (${{name}}) of the config expand to more than {_MAX_EXPANDED:,} characters. Write it "
            "without them"
        )


class _Expanded:
    """Counts the characters and values to which the references of a tree expand, without expanding them."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._known: dict[_Place, int] = {}

    def size(self, place: _Place, node: Any) -> int:
        if (found := self._known.get(place)) is not None:
            return found
        self._known[place] = 1  # for a node that refers to itself, which OmegaConf reports
        if isinstance(node, dict):
            size = sum(self.size((*place, str(key)), value) for key, value in node.items())
        elif isinstance(node, list):
            size = sum(self.size((*place, str(number)), value) for number, value in enumerate(node))
        else:
            size = len(node) if isinstance(node, str) else 0
            for name in _REFERENCE.findall(node) if isinstance(node, str) else ():
                size += self._size_of_reference(place, name)
        self._known[place] = size + 1
        return size + 1

    def _size_of_reference(self, place: _Place, name: str) -> int:
        up = len(name) - len(name.lstrip("."))
        target = [*(place[: len(place) - up] if up else ()), *re.findall(r"[^.\[\]]+", name)]
        node: Any = self._tree
        for number, part in enumerate(target):
            if isinstance(node, str):  # `${b.x}`, where b is itself a reference
                return self.size(tuple(target[:number]), node)
            if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, dict):
                node = next((value for key, value in node.items() if str(key) == part), None)
            else:
                return 0
        return self.size(tuple(target), node)


def describe_error(error: OmegaConfBaseException) -> str:
    """Explain an error without the grammar tokens and Python names that OmegaConf's own message contains."""
    key, found = error.full_key or "its content", str(error).splitlines()[0]
    if isinstance(error, GrammarParseError):
        return f"{key} contains an invalid ${{...}}; expected ${{name}}, ${{a.b}} or ${{oc.env:NAME}}"
    if isinstance(error, InterpolationKeyError):
        return (
            f"{key}: {found.replace('Interpolation key', 'the reference', 1).removesuffix(' not found')} does not exist"
        )
    if isinstance(error, InterpolationResolutionError) and '"' in found:
        return f"{key} cannot be resolved: {found.partition(chr(34))[2].rstrip(chr(34))}"
    return f"{key}: {found}" if error.full_key else "expected a mapping of server names to settings"


def _describe_yaml_error(error: Exception) -> str:
    """Format a YAML error as one line."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem or error.context} in line {mark.line + 1}, column {mark.column + 1}"
    return getattr(error, "strerror", None) or " ".join(str(error).split())
