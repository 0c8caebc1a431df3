"""Sweep: the combinations of a sweep file."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rollyard.launchers.slurm.launch.dotted_keys import Setting, setting
from rollyard.launchers.slurm.launch.yaml_values import explain_yaml_error, load_yaml
from rollyard.records.errors import OperatorError
from rollyard.records.io.json_values import json_kind

CONFIG_PATH = "config_path"
MAX_COMBINATIONS = 10_000
"""A larger product is almost certainly a mistake, and SLURM's default limit for jobs is 10,000."""


@dataclass(frozen=True)
class Sweep:
    """A sweep file."""

    config_path: str | None
    combinations: tuple[tuple[Setting, ...], ...]
    """The Cartesian product in the order of the file; the last key changes fastest."""


NO_SWEEP = Sweep(None, ((),))


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file: a mapping of keys to lists of values. Any other value counts as a list with one item.

    Raises OperatorError if the file is missing, empty, or not such a mapping.
    """
    try:
        tree = load_yaml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise OperatorError(f"sweep file {str(path)!r} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise OperatorError(f"sweep file {str(path)!r} is not YAML: {explain_yaml_error(error)}") from error
    if tree is None:
        raise OperatorError(f"sweep file {str(path)!r} is empty; expected keys with lists of values")
    if not isinstance(tree, dict):
        raise OperatorError(f"sweep file {str(path)!r} contains {json_kind(tree)}; expected keys with lists of values")
    config_path = tree.pop(CONFIG_PATH, None)
    if config_path is not None and not isinstance(config_path, str):
        raise OperatorError(f"sweep file {str(path)!r}: config_path is {config_path!r}; expected the path of a config")
    axes = [_axis(key, value, f"sweep file {str(path)!r}") for key, value in tree.items()]
    if not axes and config_path is None:
        raise OperatorError(f"sweep file {str(path)!r} has no keys; expected keys with lists of values")
    _check_keys([axis[0].key for axis in axes], str(path))
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > MAX_COMBINATIONS:
        raise OperatorError(f"sweep file {str(path)!r} has {count} combinations; expected at most {MAX_COMBINATIONS}")
    return Sweep(config_path, tuple(itertools.product(*axes)))


def _axis(key: Any, value: Any, origin: str) -> list[Setting]:
    if not isinstance(key, str):
        raise OperatorError(f"{origin}: {key!r} is not a key; expected a name such as generation.temperature")
    values = value if isinstance(value, list) else [value]
    if not values:
        raise OperatorError(f"{origin}: {key} has an empty list; expected at least one value, or remove the key")
    return [setting(key, one, origin) for one in values]


def _check_keys(keys: list[str], path: str) -> None:
    for first, second in itertools.permutations(keys, 2):
        if second.startswith(f"{first}."):
            raise OperatorError(f"sweep file {path!r} sets {first} and {second}, a part of it; keep one")
