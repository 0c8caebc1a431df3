"""Reads the config of an evaluation from a YAML file and overrides of its keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.services.config.overrides import Override
from rollyard.services.config.settings_file import dump_settings as dump_eval_config
from rollyard.services.config.settings_file import load_settings, settings_of

__all__ = ["config_of", "dump_eval_config", "load_eval_config"]


def load_eval_config(path: str | None, overrides: Iterable[Override], roots: Sequence[Path]) -> EvalConfig:
    """Read the file `path`, which is searched for in the roots and their folders `configs`, and apply the overrides.

    Raises OperatorError if the file does not exist or the config is invalid.
    """
    return load_settings(EvalConfig, path, overrides, roots)


def config_of(tree: Mapping[str, Any], overrides: Iterable[Override] = (), owner: str = "config") -> EvalConfig:
    """Return the config for the contents of a file. `owner`: the file's name, for messages."""
    return settings_of(EvalConfig, tree, overrides, owner)
