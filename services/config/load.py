"""Merges YAML files, then `env.yaml`, then overrides into typed settings; checks them before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

from rollyard.records.data_files import find_file
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.types import Json
from rollyard.records.variables import variable
from rollyard.records.yaml_aliases import check_aliases
from rollyard.services.config.nemo_gym import (
    LAUNCH_KEYS,
    expand,
    missing_values,
    with_chosen_environment,
    with_roots_of,
)
from rollyard.services.config.overrides import ConfigOverride, apply
from rollyard.services.config.plugins import FAMILIES, FAMILY_ALIASES
from rollyard.services.config.run_config import RunConfig
from rollyard.services.config.server_entries import ServerEntries, check_references
from rollyard.services.server.settings import dashed


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
    names = ("configs/*.yaml", *(f"{family}/*/configs/*.yaml" for family in (*FAMILIES, *FAMILY_ALIASES)))
    known = [str(found.relative_to(root)) for root in roots for name in names for found in root.glob(name)]
    same = [one for one in known if Path(one).name == Path(path).name]  # in another family
    searched = ", ".join(str(root) for root in roots)
    raise OperatorError(f"config file {path!r} not found{did_you_mean(path, same or known)} (looked in {searched})")


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
    """Return the tree with every reference `${name}` replaced. Raises OmegaConf's errors."""
    return OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)


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
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem or error.context} in line {mark.line + 1}, column {mark.column + 1}"
    return getattr(error, "strerror", None) or " ".join(str(error).split())


_PLAIN_REFERENCE = re.compile(r"(?<!\\)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load(
    config_paths: Sequence[str | Mapping[str, Any]],
    overrides: Sequence[ConfigOverride],
    roots: Sequence[Path],
    environ: Mapping[str, str],
    *,
    options: Iterable[str] = (),
    env_file: Path | None = Path("env.yaml"),
) -> RunConfig:
    """Merge, resolve and validate the configs. Raises OperatorError if they are invalid.

    `config_paths`: file names, or mappings with the contents of a file.
    `options`: names of the command's options, which are suggested when an unknown key resembles one.
    `env_file`: the file whose settings override `config_paths`, relative to the first of `roots`; None: there is none.
    """
    if not config_paths:
        raise OperatorError("no config given; expected, for example, ng_run a.yaml b.yaml")
    env_path = None if env_file is None else roots[0] / env_file
    roots = with_chosen_environment(roots, overrides)
    given = config_files(config_paths, roots)
    sources = [*given, *([env_path] if env_path is not None and env_path.is_file() else [])]
    tree = OmegaConf.merge({}, *(read_yaml(one) if isinstance(one, Path) else dict(one) for one in sources))
    assert isinstance(tree, DictConfig)
    _check_top_level_keys(tree, overrides, options)
    apply(tree, overrides)
    tree = expand(tree)
    _fill_from_environment(tree, environ)
    resolved_tree = _resolve(tree)
    searched = with_roots_of((path for path in given if isinstance(path, Path)), roots)
    entries = ServerEntries(resolved_tree, searched)
    servers = entries.servers()
    if not servers:
        expected = f"a server name with one of {', '.join(FAMILIES)} as a key under it"
        raise OperatorError(
            f"the configs define no server (found keys: {', '.join(resolved_tree) or 'none'}); expected {expected}"
        )
    check_references(servers)
    return RunConfig(servers, resolved_tree, tuple(entries.notes))


def _check_top_level_keys(tree: DictConfig, overrides: Sequence[ConfigOverride], options: Iterable[str]) -> None:
    """Reject overrides whose key is neither in a config nor used in a `${...}`, because it is probably misspelt."""
    text = OmegaConf.to_yaml(tree)
    known = {*(str(key) for key in tree), *_PLAIN_REFERENCE.findall(text), *LAUNCH_KEYS}
    for override in overrides:
        if override.top in known:
            continue
        nested_key = override.key.partition(".")[2].partition(".")[0]
        names_a_family = nested_key in {*FAMILIES, *FAMILY_ALIASES} or (
            isinstance(override.value, dict) and bool({*FAMILIES, *FAMILY_ALIASES} & override.value.keys())
        )
        if override.adds and names_a_family:
            continue  # the command line defines an entire server
        hint = did_you_mean(override.top, [*known, *options])
        found = f"{override.top!r} in {override.shown!r}"
        if override.is_dashed:
            found = repr(override.source.partition("=")[0])
            hint = hint.replace("_", "-").replace(" '", " '--")
        raise OperatorError(
            f"unknown option {found}{hint}: "
            "it is neither an option of this command, nor a server in the configs, nor a ${...} variable that they use"
        )


def _fill_from_environment(tree: DictConfig, environ: Mapping[str, str]) -> None:
    references = [name for name in dict.fromkeys(_PLAIN_REFERENCE.findall(OmegaConf.to_yaml(tree))) if name not in tree]
    found = {name: variable(environ, name) for name in references}
    if missing := [name for name, value in found.items() if not value]:
        name, *others = missing
        user = next(_paths_that_use(name, OmegaConf.to_container(tree), ""), "a config")
        also = f" (also not set: {', '.join(others)})" if others else ""
        raise OperatorError(
            f"{user} needs ${{{name}}}, which is not set: export {name}=..., "
            f"add {dashed(name)} ..., or put `{name}: ...` in env.yaml{also}"
        )
    for name, value in found.items():
        tree[name] = value


def _paths_that_use(name: str, node: Any, path: str) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _paths_that_use(name, value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, str) and f"${{{name}}}" in node:
        yield path


def _resolve(tree: DictConfig) -> Json:
    if missing := missing_values(OmegaConf.to_container(tree, resolve=False)):
        listed = ", ".join(missing)
        raise OperatorError(
            f"{listed}: the config leaves {'this value' if len(missing) == 1 else 'these values'} open (???); "
            f"add '++{missing[0]}=...', or set it in env.yaml or in a config file"
        )
    try:
        plain = resolved(tree)
    except OmegaConfBaseException as error:
        raise OperatorError(f"config value {describe_error(error)}") from error
    return {str(key): value for key, value in plain.items()}
