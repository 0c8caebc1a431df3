"""Reads the config of a command, such as `ng_eval`, from a YAML file and overrides of its keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.load import describe_error, find_config, read_yaml, resolved
from rollyard.services.config.overrides import ConfigOverride
from rollyard.services.server.settings import alternatives, parse_settings, takes_list, takes_text

M = TypeVar("M", bound=BaseModel)

_REFERENCE = re.compile(r"(\\*)\$\{")


def load_settings(model: type[M], path: str | None, overrides: Iterable[ConfigOverride], roots: Sequence[Path]) -> M:
    """Read the file `path`, which is searched for in `search_path(roots)`, and apply the overrides.

    Raises OperatorError if the file does not exist or the config is invalid.
    """
    tree = {} if path is None else _read(find_config(path, search_path(roots)))
    return settings_of(model, tree, overrides, path or "command line")


def search_path(roots: Sequence[Path]) -> list[Path]:
    """Return the folders in which the files of commands are searched for: the roots and their folders `configs`."""
    return [*roots, *(root / "configs" for root in roots)]


def settings_of(
    model: type[M], tree: Mapping[str, Any], overrides: Iterable[ConfigOverride] = (), owner: str = "config"
) -> M:
    """Return the config for the contents of a file. `owner`: the file's name, for messages."""
    return parse_settings(model, _lists(model, _overridden(model, dict(tree), overrides)), owner)


def dump_settings(tree: Mapping[str, Any]) -> str:
    """Return the contents of a file that is read back as `tree`: references such as `${a}` in values stay text."""
    return yaml.safe_dump(_escaped(tree), sort_keys=False, allow_unicode=True)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: f"{found[1] * 2}\\${{", value)
    if isinstance(value, Mapping):
        return {name: _escaped(below) for name, below in value.items()}
    return [_escaped(one) for one in value] if isinstance(value, list | tuple) else value


def _read(path: Path) -> Json:
    tree = read_yaml(path)
    try:
        plain: Any = resolved(tree)
    except OperatorError as error:
        raise OperatorError(f"{path}: {error}") from error
    except Exception as error:
        if error.__class__.__module__.startswith("omegaconf"):
            raise OperatorError(f"{path}: {describe_error(error)}") from error  # type: ignore[arg-type]
        raise
    return {str(key): value for key, value in plain.items()}


def _overridden(model: type[BaseModel], tree: Json, overrides: Iterable[ConfigOverride]) -> Json:
    """Return `tree` with the overrides applied; a mapping is merged into an existing one."""
    result = dict(tree)
    for override in overrides:
        *parents, last = override.key.split(".")
        node = result
        for part in parents:
            below = node.get(part)
            if below is not None and not isinstance(below, dict):
                raise OperatorError(f"{override.shown!r}: {part!r} takes a single value, so it has no nested keys")
            node[part] = dict(below or {})
            node = node[part]
        if override.delete:
            node.pop(last, None)
        elif isinstance(override.value, dict) and isinstance(node.get(last), dict):
            node[last] = {**node[last], **override.value}
        else:
            node[last] = _typed(model, override)
    return result


def _typed(model: type[BaseModel], override: ConfigOverride) -> Any:
    """Return the value as typed if the key takes text: a model named 007 is not the number 7."""
    annotation: Any = model
    for part in override.key.split("."):
        below = next((kind for kind in alternatives(annotation) if _is_model(kind)), None) if annotation else None
        field = below.model_fields.get(part) if below else None
        annotation = field.annotation if field else None
    scalar = isinstance(override.value, bool | int | float)
    return override.typed if scalar and annotation is not None and takes_text(annotation) else override.value


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _lists(model: type[BaseModel], tree: Json) -> Json:
    """Return `tree` with single values of nested list settings as lists; parse_settings does so at the top level."""
    result = dict(tree)
    for name, field in model.model_fields.items():
        nested = next((kind for kind in (field.annotation, *get_args(field.annotation)) if _is_model(kind)), None)
        if nested is not None and isinstance(result.get(name), dict):
            result[name] = _lists(nested, result[name])
        elif takes_list(field.annotation) and isinstance(result.get(name), str | int | float):
            result[name] = [result[name]]
    return result
